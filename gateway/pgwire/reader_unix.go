//go:build unix

package pgwire

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

func rawConn(conn net.Conn) syscall.RawConn {
	if c, ok := conn.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}

// readNow reads once without waiting: at least one byte, or an error, or nothing if it would have to wait.
func readNow(fd uintptr, b []byte) (n int, wait bool, err error) {
	for {
		n, err := syscall.Read(int(fd), b)
		switch {
		case err == nil && n > 0:
			return n, false, nil
		case err == nil:
			return 0, false, io.EOF
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			return 0, true, nil
		}
		return 0, false, os.NewSyscallError("read", err)
	}
}
