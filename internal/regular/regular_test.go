//go:build unix

package regular_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/fencegate/fencegate/internal/regular"
)

func TestOnlyRegularFilesAreRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, link, pipe, toPipe := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "pipe"), filepath.Join(dir, "to-pipe")
	for _, err := range []error{
		os.WriteFile(file, []byte("1234"), 0o600), os.Symlink("file", link), syscall.Mkfifo(pipe, 0o600), os.Symlink("pipe", toPipe),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{file, link} {
		if text, err := regular.Read(path, 4); err != nil || string(text) != "1234" {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
	for path, reason := range map[string]string{pipe: "is not a regular file", toPipe: "is not a regular file", dir: "is not a regular file", os.DevNull: "is not a regular file", file: "has more than 3 bytes"} {
		_, err := regular.Read(path, 3)
		if of, ok := errors.AsType[*os.PathError](err); !ok || of.Path != path || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v; want %q", path, err, reason)
		}
	}
	if _, err := regular.Read(filepath.Join(dir, "none"), 3); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
