package s3

import (
	"net"
	"sync"
	"time"
)

// patient is a listener whose connections wait for the other side only so long.
// The front has no such limit, and a limit on whole requests would cut long
// uploads off.
type patient struct {
	net.Listener

	stall time.Duration
}

// Accept implements [net.Listener].
func (p *patient) Accept() (net.Conn, error) {
	c, err := p.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &patientConn{Conn: c, stall: p.stall}, nil
}

// patientConn moves the deadline with each read and write; a deadline that the
// server sets counts where it is earlier.
type patientConn struct {
	net.Conn

	stall time.Duration
	mu    sync.Mutex
	read  time.Time // the server's own deadline; zero: none
}

// Read implements [net.Conn].
func (c *patientConn) Read(p []byte) (int, error) {
	if err := c.Conn.SetReadDeadline(c.deadline()); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c *patientConn) deadline() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := time.Now().Add(c.stall)
	if !c.read.IsZero() && c.read.Before(d) {
		return c.read
	}
	return d
}

// Write implements [net.Conn].
func (c *patientConn) Write(p []byte) (int, error) {
	if err := c.Conn.SetWriteDeadline(time.Now().Add(c.stall)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// SetReadDeadline implements [net.Conn].
func (c *patientConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	c.read = t
	c.mu.Unlock()
	return c.Conn.SetReadDeadline(t)
}

// SetDeadline implements [net.Conn].
func (c *patientConn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.Conn.SetWriteDeadline(t)
}
