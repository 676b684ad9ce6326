package edge

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Answers are sent the cheapest way: from a file to a TCP connection inside the kernel, otherwise in pieces larger than
// the server's buffer.

const (
	sendStep   = 256 << 10 // bytes that must be sent within the stall timeout
	sendBuffer = 64 << 10
)

var sendBuffers = sync.Pool{New: func() any { b := make([]byte, sendBuffer); return &b }}

var _ io.ReaderFrom = (*Conn)(nil)

// ReadFrom implements [io.ReaderFrom]. It extends the deadline with each step.
func (c *Conn) ReadFrom(r io.Reader) (sent int64, err error) {
	tcp, isTCP := c.Conn.(*net.TCPConn)
	limited, isFile := r.(*io.LimitedReader)
	if isFile {
		_, isFile = limited.R.(*os.File)
	}
	if !isTCP || !isFile {
		buf := sendBuffers.Get().(*[]byte)
		defer sendBuffers.Put(buf)
		return io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{r}, *buf)
	}
	for limited.N > 0 {
		if err := c.SetWriteDeadline(time.Now().Add(c.stall)); err != nil {
			return sent, err
		}
		n, err := tcp.ReadFrom(&io.LimitedReader{R: limited.R, N: min(limited.N, sendStep)})
		c.conns.Out.Add(n)
		sent, limited.N = sent+n, limited.N-n
		if err != nil || n == 0 {
			return sent, err
		}
	}
	return sent, nil
}
