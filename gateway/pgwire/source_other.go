//go:build !unix

package pgwire

import (
	"net"
	"syscall"
)

func rawConn(net.Conn) syscall.RawConn { return nil }

func (r *source) tryRead(uintptr) bool { return true }
