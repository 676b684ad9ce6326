// Package regular reads the files that options name.
//
// The guarantee: a read ends. Only a regular file is read, directly or behind symbolic links: opening or reading
// another kind, such as a pipe, may block for ever.
//
//	text, err := regular.Read("/etc/fencegate/master.key", regular.MaxBytes)
package regular

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// MaxBytes is the limit for files without one of their own, such as keys and certificates.
const MaxBytes = 16 << 20

var errIrregular = errors.New("is not a regular file")

// Read returns the content of a regular file of at most limit bytes. The error is an [*os.PathError].
func Read(path string, limit int64) ([]byte, error) {
	refused := func(err error) ([]byte, error) { return nil, &os.PathError{Op: "read", Path: path, Err: err} }
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	switch info, err := file.Stat(); {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return refused(errIrregular)
	}
	text, err := io.ReadAll(io.LimitReader(file, limit+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(text)) > limit:
		return refused(fmt.Errorf("has more than %d bytes", limit))
	}
	return text, nil
}
