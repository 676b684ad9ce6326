package blob

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Dir keeps each blob in a file of its own, in 256 folders by the last byte of its id, which is random. The folders are
// created beforehand, so that storing a blob syncs one file and one folder. A blob is written to a temporary file,
// synced and renamed, and its folder is synced, so after a power loss it is either complete or absent (if the disk
// honours fsync). A blob whose place was reserved is written in place, and only its file is synced: its name is already
// durable.
type Dir struct {
	root string
	sync func(folder string) error
}

var _ Reserver = (*Dir)(nil)

const (
	unfinished = ".part"
	copyBuffer = 128 << 10
)

var buffers = sync.Pool{New: func() any { b := make([]byte, copyBuffer); return &b }}

// OpenDir opens the store in a folder, and creates the folder if it does not exist. The folder must be on one file
// system and belong to fencegate alone.
func OpenDir(root string) (*Dir, error) {
	if root == "" {
		return nil, errors.New("blob folder: no path given")
	}
	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("blob folder: %w", err)
	}
	if err := makeFolders(abs, syncFolder); err != nil {
		return nil, fmt.Errorf("blob folder: %w", err)
	}
	for i := range 256 {
		if err := os.Mkdir(filepath.Join(abs, hex.EncodeToString([]byte{byte(i)})), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("blob folder: %w", err)
		}
	}
	if err := syncFolder(abs); err != nil {
		return nil, fmt.Errorf("blob folder: %w", err)
	}
	return &Dir{root: abs, sync: syncFolder}, nil
}

// hasFolders returns an error if a folder has none of those that [OpenDir] makes.
func hasFolders(root string) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if b, err := hex.DecodeString(e.Name()); err == nil && len(b) == 1 && e.IsDir() {
			return nil
		}
	}
	return fmt.Errorf("%s is not a blob store: it lacks the folders that a gateway makes at its start; is the right disk mounted?", root)
}

// Put implements [Store].
func (d *Dir) Put(ctx context.Context, id ID, r io.Reader, size int64) error {
	if err := d.put(ctx, id, r, size); err != nil {
		return fmt.Errorf("store blob %s: %w", id, strip(err))
	}
	return nil
}

func (d *Dir) put(ctx context.Context, id ID, r io.Reader, size int64) (err error) {
	path, folder := d.path(id)
	part := path + unfinished
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close() // closing twice is harmless
			_ = os.Remove(part)
		}
	}()
	if err := copyExactly(ctx, f, r, size); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(part, path); err != nil {
		return err
	}
	if err := d.sync(folder); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

// copyExactly copies size bytes; fewer or more are ErrSize.
func copyExactly(ctx context.Context, w io.Writer, r io.Reader, size int64) error {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	var n int64
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		got, readErr := r.Read(*buf)
		n += int64(got)
		if n > size {
			return fmt.Errorf("%w: more than the announced %d bytes", ErrSize, size)
		}
		if _, err := w.Write((*buf)[:got]); err != nil {
			return err
		}
		switch {
		case readErr == nil:
		case !errors.Is(readErr, io.EOF):
			return readErr
		case n < size:
			return fmt.Errorf("%w: %d of the announced %d bytes", ErrSize, n, size)
		default:
			return nil
		}
	}
}

// Reserve implements [Reserver].
func (d *Dir) Reserve(ctx context.Context, ids []ID) error {
	folders := map[string]struct{}{}
	for _, id := range ids {
		path, folder := d.path(id)
		err := ctx.Err()
		if err == nil {
			err = makeEmpty(path)
		}
		if err != nil {
			return fmt.Errorf("reserve blob %s: %w", id, strip(err))
		}
		folders[folder] = struct{}{}
	}
	for folder := range folders {
		if err := d.sync(folder); err != nil {
			return fmt.Errorf("reserve %d blobs: %w", len(ids), strip(err))
		}
	}
	return nil
}

func makeEmpty(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// Fill implements [Reserver].
func (d *Dir) Fill(ctx context.Context, id ID, r io.Reader, size int64) error {
	if err := d.fill(ctx, id, r, size); err != nil {
		return fmt.Errorf("store blob %s: %w", id, strip(err))
	}
	return nil
}

func (d *Dir) fill(ctx context.Context, id ID, r io.Reader, size int64) (err error) {
	path, _ := d.path(id)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotFound
	}
	if err != nil {
		return err
	}
	err = holdAlone(f)
	var info fs.FileInfo
	if err == nil {
		info, err = f.Stat()
	}
	if err == nil && info.Size() > 0 {
		err = ErrFilled
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	defer func() {
		if err != nil {
			_ = os.Remove(path) // while locked: nobody else fills what is removed
			_ = f.Close()       // closing twice is harmless
		}
	}()
	if err := copyExactly(ctx, f, r, size); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return f.Close()
}

// ErrFilled is the error of Fill for a place that already holds bytes, or that another caller is filling. Those bytes
// belong to the other caller and stay.
var ErrFilled = errors.New("the reserved blob already has bytes")

// Open implements [Store].
func (d *Dir) Open(_ context.Context, id ID, offset, length int64) (io.ReadCloser, error) {
	path, _ := d.path(id)
	f, err := os.Open(path)
	if err != nil {
		return nil, notFound(id, err)
	}
	info, err := f.Stat()
	if err == nil && (offset < 0 || length < 0 || offset > info.Size() || length > info.Size()-offset) {
		err = fmt.Errorf("%w: bytes %d+%d of %d", ErrSize, offset, length, info.Size())
	}
	if err == nil {
		_, err = f.Seek(offset, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open blob %s: %w", id, err), f.Close())
	}
	return &section{Reader: io.LimitReader(f, length), Closer: f}, nil
}

type section struct {
	io.Reader
	io.Closer
}

// WriteTo implements [io.WriterTo], so that a destination that can read the file itself finds it.
func (s *section) WriteTo(w io.Writer) (int64, error) { return io.Copy(w, s.Reader) }

// Size implements [Store].
func (d *Dir) Size(_ context.Context, id ID) (int64, error) {
	path, _ := d.path(id)
	info, err := os.Stat(path)
	if err != nil {
		return 0, notFound(id, err)
	}
	return info.Size(), nil
}

// Delete implements [Store].
func (d *Dir) Delete(_ context.Context, id ID) error {
	path, _ := d.path(id)
	for _, p := range []string{path + unfinished, path} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("delete blob %s: %w", id, err)
		}
	}
	return nil // not synced: a blob that comes back after a crash is deleted again
}

// All implements [Store]. It skips files that are not blobs.
func (d *Dir) All(ctx context.Context) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		stopped := errors.New("stopped")
		err := filepath.WalkDir(d.root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil {
				err = ctx.Err()
			}
			if err != nil || entry.IsDir() {
				return err
			}
			id, err := ParseID(entry.Name())
			if want, _ := d.path(id); err != nil || want != path {
				return nil //nolint:nilerr // not one of ours
			}
			info, err := entry.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && !yield(Info{ID: id, Size: info.Size(), Changed: info.ModTime()}, nil) {
				return stopped
			}
			return err
		})
		if err != nil && !errors.Is(err, stopped) {
			yield(Info{}, fmt.Errorf("list blobs: %w", err))
		}
	}
}

// Unfinished lists what Puts left when a crash interrupted them. [Dir.All] does not list it. If no record names its id,
// Delete it.
func (d *Dir) Unfinished(ctx context.Context) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		stopped := errors.New("stopped")
		err := filepath.WalkDir(d.root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil {
				err = ctx.Err()
			}
			if err != nil || entry.IsDir() {
				return err
			}
			name, isPart := strings.CutSuffix(entry.Name(), unfinished)
			id, err := ParseID(name)
			if want, _ := d.path(id); !isPart || err != nil || want+unfinished != path {
				return nil //nolint:nilerr // not one of ours
			}
			info, err := entry.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil // finished in the meantime
			}
			if err == nil && !yield(Info{ID: id, Size: info.Size(), Changed: info.ModTime()}, nil) {
				return stopped
			}
			return err
		})
		if err != nil && !errors.Is(err, stopped) {
			yield(Info{}, fmt.Errorf("list unfinished blobs: %w", err))
		}
	}
}

// Owner implements [Store].
func (d *Dir) Owner(context.Context) (string, error) {
	f, err := os.Open(filepath.Join(d.root, ownerName))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the owner mark of the blob store: %w", strip(err))
	}
	mark, err := io.ReadAll(io.LimitReader(f, maxOwner))
	if err = errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("read the owner mark of the blob store: %w", strip(err))
	}
	return string(mark), nil
}

// SetOwner implements [Store].
func (d *Dir) SetOwner(_ context.Context, mark string) error {
	if err := d.setOwner(mark); err != nil {
		return fmt.Errorf("write the owner mark of the blob store: %w", strip(err))
	}
	return nil
}

func (d *Dir) setOwner(mark string) error {
	f, err := os.CreateTemp(d.root, ownerName+"-*"+unfinished) // 0600
	if err != nil {
		return err
	}
	_, err = f.WriteString(mark)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(d.root, ownerName))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return syncFolder(d.root)
}

func (d *Dir) path(id ID) (path, folder string) {
	folder = filepath.Join(d.root, hex.EncodeToString(id[len(id)-1:]))
	return filepath.Join(folder, id.String()), folder
}

// makeFolders creates a folder and its missing parents, and syncs the parent of each: a power loss that removed one
// would remove every blob with it. It also syncs for existing folders, which an interrupted start may have created.
func makeFolders(path string, sync func(folder string) error) error {
	parent := filepath.Dir(path)
	switch info, err := os.Stat(path); {
	case err == nil && info.IsDir():
		if err := sync(parent); !errors.Is(err, fs.ErrPermission) { // another user's folder, created long ago
			return err
		}
		return nil
	case err == nil:
		return fmt.Errorf("%s is not a folder", path)
	case !errors.Is(err, fs.ErrNotExist) || parent == path:
		return err
	}
	if err := makeFolders(parent, sync); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return sync(parent)
}

func syncFolder(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func notFound(id ID, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	return fmt.Errorf("blob %s: %w", id, strip(err))
}

// strip removes the folder's path from an error: the id identifies the blob.
func strip(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w", p.Op, p.Err)
	}
	return err
}
