package blob

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

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
