package transfer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Download writes an object to a file, or into a folder under the object's name. A regular file, also one behind a
// symbolic link, is replaced when all bytes are there, and keeps its mode, and its owner and group as far as this process
// may set them. A named pipe or a character device is written to. Anything else is refused.
func (c *Client) Download(ctx context.Context, from Object, path string, o Options) error {
	info, err := os.Stat(path)
	if err == nil && info.IsDir() {
		path = filepath.Join(path, filepath.Base(from.Key))
		info, err = os.Stat(path)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return c.replace(ctx, from, path, nil, o)
	case err != nil:
		return err
	case info.Mode().IsRegular():
		return c.replace(ctx, from, path, info, o)
	case info.Mode()&(fs.ModeNamedPipe|fs.ModeCharDevice) != 0:
		return c.stream(ctx, from, path, info.Mode(), o)
	}
	return &fence.InvalidError{Field: "target", Reason: fmt.Sprintf("%q is neither a regular file, a named pipe nor a character device", path)}
}

// newFile is the mode of a new file, before the umask.
const newFile fs.FileMode = 0o666

// replace writes beside the file, and renames. old is the file that is replaced; nil: none.
func (c *Client) replace(ctx context.Context, from Object, path string, old fs.FileInfo, o Options) (err error) {
	if path, err = behindLinks(path); err != nil {
		return err
	}
	mode := newFile
	if old != nil {
		mode = 0o600 // until all bytes are there: the old file may be secret
	}
	part := filepath.Join(filepath.Dir(path), ".fencegate-"+rand.Text()+".part") // the file's own name may be as long as a name can be
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			_ = os.Remove(part)
		}
	}()
	if err := c.Cat(ctx, from, f, o); err != nil {
		return err
	}
	if old != nil {
		own(f, old) // before the mode: it clears some bits
		if err := f.Chmod(old.Mode().Perm()); err != nil {
			return err
		}
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// own gives a file the owner and group of another, as far as this process may: root may, others may only give it one of
// their own groups.
func own(f *os.File, like fs.FileInfo) {
	owner, ok := like.Sys().(*syscall.Stat_t)
	if !ok {
		return
	}
	if f.Chown(int(owner.Uid), int(owner.Gid)) != nil {
		_ = f.Chown(-1, int(owner.Gid))
	}
}

// descriptors are the folders of a process's open files, such as /dev/fd once its links are resolved. Replacing the
// file behind such a name would leave the process that has it open with a file that has no name.
var descriptors = regexp.MustCompile(`^(/dev|/proc/\d+(/task/\d+)?)/fd$`)

// maxLinks bounds the symbolic links of a path, as Linux does.
const maxLinks = 40

// behindLinks resolves the symbolic links of a path. Unlike filepath.EvalSymlinks, it resolves one to a missing file.
func behindLinks(path string) (string, error) {
	for range maxLinks {
		dir, name := filepath.Split(path) // filepath.Dir would remove "..", which is wrong behind a link
		if dir == "" {
			dir = "."
		}
		dir, err := filepath.EvalSymlinks(dir)
		if err != nil {
			return path, err
		}
		path = filepath.Join(dir, name)
		if descriptors.MatchString(dir) {
			return path, &fence.InvalidError{Field: "target", Reason: fmt.Sprintf("%q is an open file, which can't be replaced; name the file itself, or /dev/stdout", path)}
		}
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return path, nil
		}
		if err != nil || info.Mode()&fs.ModeSymlink == 0 {
			return path, err
		}
		next, err := os.Readlink(path)
		if err != nil {
			return path, err
		}
		if path = next; !filepath.IsAbs(next) {
			path = dir + string(filepath.Separator) + next
		}
	}
	return path, &fs.PathError{Op: "open", Path: path, Err: syscall.ELOOP}
}

// stream writes to a named pipe or a device. It ends with ctx, also while nobody reads.
func (c *Client) stream(ctx context.Context, from Object, path string, mode fs.FileMode, o Options) error {
	f, err := openStream(ctx, path, mode)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	return errors.Join(c.Cat(ctx, from, f, o), f.Close())
}

// readerEvery is the interval of the checks for a named pipe's reader.
const readerEvery = 50 * time.Millisecond

// openStream opens a named pipe or a device. It waits for a pipe's reader until ctx ends; a plain open would wait
// without end.
func openStream(ctx context.Context, path string, mode fs.FileMode) (*os.File, error) {
	if mode&fs.ModeNamedPipe == 0 {
		return os.OpenFile(path, os.O_WRONLY, 0)
	}
	tick := time.NewTicker(readerEvery)
	defer tick.Stop()
	for {
		f, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if !errors.Is(err, syscall.ENXIO) { // there is no reader
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
	}
}
