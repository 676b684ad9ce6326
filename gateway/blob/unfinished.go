package blob

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path/filepath"
	"strings"
)

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
