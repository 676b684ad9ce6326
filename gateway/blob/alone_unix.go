//go:build unix

package blob

import (
	"errors"
	"os"
	"syscall"
)

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
