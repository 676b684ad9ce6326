//go:build unix

package blob

import (
	"context"
	"errors"
	"fmt"
	"os"
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

// holdAlone locks a file until it is closed, also against other processes. The error is ErrFilled if another holder has
// the lock, ErrNotFound if a previous holder has removed the file. A file system without locks is no error.
func holdAlone(f *os.File) error {
	_, err := again(func() (int, error) { return 0, syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) })
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrFilled
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Nlink == 0 {
		return ErrNotFound
	}
	return nil
}
