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

// tryRead does what net.Conn's Read does between two waits, but waits without a buffer. It returns false if there is
// nothing to read yet.
func (r *source) tryRead(fd uintptr) bool {
	if r.full && len(r.buf) == bufferBytes {
		r.free()
	}
	if r.buf == nil {
		r.buf = takeBuffer(r.full)
	}
	for {
		n, err := syscall.Read(int(fd), r.buf)
		switch {
		case err == nil && n > 0:
			r.n, r.full = n, n == len(r.buf)
			return true
		case err == nil:
			r.err = io.EOF
		case errors.Is(err, syscall.EINTR):
			continue
		case errors.Is(err, syscall.EAGAIN):
			r.full = false
			r.free()
			return false
		default:
			r.err = os.NewSyscallError("read", err)
		}
		r.free()
		return true
	}
}
