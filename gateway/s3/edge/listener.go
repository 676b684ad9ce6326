package edge

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Connections holds the open connections of a listener, and counts their bytes, including TLS and headers.
type Connections struct {
	In, Out atomic.Int64

	mu   sync.Mutex
	open map[*Conn]struct{}
}

// Count returns the number of open connections.
func (c *Connections) Count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}

// add returns false if there are too many. It marks a connection as surplus if that is open only to be refused.
func (c *Connections) add(conn *Conn, limit int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.open) >= limit+Refusers {
		return false
	}
	conn.Surplus = len(c.open) >= limit
	if c.open == nil {
		c.open = map[*Conn]struct{}{}
	}
	c.open[conn] = struct{}{}
	return true
}

func (c *Connections) remove(conn *Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, conn)
}

// Cut closes all connections.
func (c *Connections) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		_ = conn.Conn.Close() // its server then removes it
	}
}

// Refusers is how many connections beyond the limit may send a request and receive 503. Further ones are closed at
// once.
const Refusers = 64

// Listener bounds the number of its connections and how long each may stall. versitygw has no such limits, and a limit
// on whole requests would cut off long uploads.
type Listener struct {
	net.Listener

	Stall  time.Duration
	Linger time.Duration // see [Lingering]
	Limit  int
	Conns  *Connections
	Log    *slog.Logger
}

// Accept implements [net.Listener]. It retries after an error, such as too many open files, because the server would
// stop.
func (p *Listener) Accept() (net.Conn, error) {
	for pause := time.Duration(0); ; {
		c, err := p.Listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil, err
		case err != nil:
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			p.Log.Warn("s3: failed to accept a connection", "error", err, "retry_in", pause)
			time.Sleep(pause)
			continue
		}
		pause = 0
		conn := &Conn{Conn: c, stall: p.Stall, linger: p.Linger, conns: p.Conns}
		if p.Conns.add(conn, p.Limit) {
			return conn, nil
		}
		_ = c.Close()
	}
}

// Conn extends its deadline with each read and write. An earlier deadline set by the server takes precedence.
type Conn struct {
	net.Conn

	Surplus     bool        // beyond the limit: to be refused
	BodyPending atomic.Bool // the client may be sending a body that is not read

	stall  time.Duration
	linger time.Duration
	began  bool // a byte was received; used by the reader only
	conns  *Connections
	mu     sync.Mutex
	read   time.Time // the server's own deadline; zero: none
}

// ConnOf returns the connection below, with or without TLS.
func ConnOf(c net.Conn) *Conn {
	if secure, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secure.NetConn()
	}
	if p, ok := c.(*Conn); ok {
		return p
	}
	return &Conn{}
}

// Read implements [net.Conn].
func (c *Conn) Read(p []byte) (int, error) {
	if err := c.Conn.SetReadDeadline(c.deadline()); err != nil {
		return 0, err
	}
	n, err := c.Conn.Read(p)
	c.began = c.began || n > 0
	c.conns.In.Add(int64(n))
	return n, err
}

func (c *Conn) deadline() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := time.Now().Add(c.stall)
	if !c.read.IsZero() && c.read.Before(d) {
		return c.read
	}
	return d
}

// Write implements [net.Conn].
func (c *Conn) Write(p []byte) (int, error) {
	if err := c.Conn.SetWriteDeadline(time.Now().Add(c.stall)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	c.conns.Out.Add(int64(n))
	return n, err
}

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

// Lingering is how long a refused client may continue to send its upload before it reads the answer. Half of it may pass
// until the end of a body, after its last byte.
const Lingering = 2 * time.Second

// Close implements [net.Conn]. Closing while the client sends would reset the connection, and the client could lose the
// answer.
func (c *Conn) Close() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && c.BodyPending.Load() && half.CloseWrite() == nil {
		_ = c.Conn.SetReadDeadline(time.Now().Add(c.linger)) // of all reads together
		n, _ := io.Copy(io.Discard, c.Conn)
		c.conns.In.Add(n)
	}
	c.conns.remove(c)
	return c.Conn.Close()
}

// SetReadDeadline implements [net.Conn].
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	c.read = t
	c.mu.Unlock()
	return c.Conn.SetReadDeadline(t)
}

// SetDeadline implements [net.Conn].
func (c *Conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.Conn.SetWriteDeadline(t)
}
