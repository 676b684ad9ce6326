//go:build unix

package blob

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// ReadAt fills p with the blob's bytes from offset, completely or not at all. It is Open, Read and Close with fewer
// system calls. The errors are those of Open.
func (d *Dir) ReadAt(_ context.Context, id ID, offset int64, p []byte) error {
	path, _ := d.path(id)
	fd, err := again(func() (int, error) { return syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0) })
	if err != nil {
		return notFound(id, err)
	}
	defer func() { _ = syscall.Close(fd) }()
	for got := 0; got < len(p); {
		n, err := again(func() (int, error) { return syscall.Pread(fd, p[got:], offset+int64(got)) })
		switch {
		case err != nil:
			return fmt.Errorf("read blob %s: %w", id, err)
		case n == 0:
			return fmt.Errorf("read blob %s: %w: it ends %d bytes before %d+%d", id, ErrSize, len(p)-got, offset, len(p))
		}
		got += n
	}
	return nil
}

// again retries a system call that a signal interrupts.
func again(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}
