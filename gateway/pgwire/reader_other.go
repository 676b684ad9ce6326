//go:build !unix

package pgwire

import (
	"io"
	"net"
	"syscall"
)

// rawConn returns nil: reads go through the connection.
func rawConn(net.Conn) syscall.RawConn { return nil }

func readNow(uintptr, []byte) (n int, wait bool, err error) { return 0, false, io.EOF }
