package tlsfiles

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
)

// Listener speaks TLS on the connections of an HTTP server. A handshake begins
// with the first read, so it has the deadline of that. A client that speaks plain
// HTTP is told so. With a nil configuration it is the listener itself.
func Listener(ln net.Listener, cfg *tls.Config) net.Listener {
	if cfg == nil {
		return ln
	}
	return listener{Listener: ln, cfg: cfg}
}

type listener struct {
	net.Listener

	cfg *tls.Config
}

// Accept implements [net.Listener].
func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: tls.Server(c, l.cfg)}, nil
}

type conn struct {
	*tls.Conn

	told sync.Once // that this port speaks TLS
}

const plainHTTP = "HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\nThis port speaks HTTPS: use https:// in its address.\n"

// Handshake says what is wrong to who speaks plain HTTP.
func (c *conn) Handshake() error {
	err := c.Conn.Handshake()
	if wrong, ok := errors.AsType[tls.RecordHeaderError](err); ok && wrong.Conn != nil && looksHTTP(wrong.RecordHeader) {
		c.told.Do(func() { _, _ = io.WriteString(wrong.Conn, plainHTTP) })
	}
	return err
}

// Read implements [net.Conn].
func (c *conn) Read(p []byte) (int, error) {
	if err := c.Handshake(); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

// looksHTTP: five bytes tell, the end of a method or of its name.
func looksHTTP(header [5]byte) bool {
	switch string(header[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "DELET", "OPTIO", "PATCH":
		return true
	}
	return false
}
