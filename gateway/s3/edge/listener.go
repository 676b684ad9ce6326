package edge

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Connections are those of a listener, and how many bytes passed on them, TLS and
// headers included.
type Connections struct {
	In, Out atomic.Int64

	mu   sync.Mutex
	open map[*Conn]struct{}
}

// Count is how many are open.
func (c *Connections) Count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}

// add is false where there are too many; surplus says whether this one is one
// that is only there to be refused.
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

// Cut ends them all.
func (c *Connections) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		_ = conn.Conn.Close() // its server removes it when it sees that
	}
}

// Refusers is how many connections beyond the limit may send a request, to be told
// that they are too many. Those beyond them are closed at once.
const Refusers = 64

// Listener is one whose connections wait for the other side only so long,
// and are so many at the most. versitygw has no such limits, and a limit on whole
// requests would cut long uploads off.
type Listener struct {
	net.Listener

	Stall time.Duration
	Limit int
	Conns *Connections
	Log   *slog.Logger
}

// Accept implements [net.Listener]. It waits where there are no more file
// descriptors, say: the server would end.
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
		conn := &Conn{Conn: c, stall: p.Stall, conns: p.Conns}
		if p.Conns.add(conn, p.Limit) {
			return conn, nil
		}
		_ = c.Close()
	}
}

// Conn moves the deadline with each read and write; a deadline that the
// server sets counts where it is earlier.
type Conn struct {
	net.Conn

	Surplus bool        // beyond the limit: to be refused
	Unread  atomic.Bool // the client may be sending what nobody will read

	stall time.Duration
	began bool // a byte was received; used by the reader only
	conns *Connections
	mu    sync.Mutex
	read  time.Time // the server's own deadline; zero: none
}

// ConnOf is the connection below, whether it speaks TLS or not.
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

// lingering is how long a client that was refused may go on to send its upload
// before it has read why.
const lingering = 2 * time.Second

// Close implements [net.Conn]. To close while the client sends would reset the
// connection, and the reset would overtake the answer.
func (c *Conn) Close() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && c.Unread.Load() && half.CloseWrite() == nil {
		_ = c.Conn.SetReadDeadline(time.Now().Add(lingering))
		_, _ = io.Copy(io.Discard, c.Conn)
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
