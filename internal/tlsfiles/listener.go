package tlsfiles

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
)

// Listener serves TLS on the connections of an HTTP server. A handshake begins with
// the first read, so that read's deadline applies to it. A client that sends plain
// HTTP gets an answer that says so. With a nil configuration Listener returns ln.
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

	refusal sync.Once // sends the answer to plain HTTP
}

const plainHTTP = "HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\nThis port speaks HTTPS: use https:// in its address.\n"

type connKey struct{}

// ConnContext is the [http.Server.ConnContext] for [ClientCertificate]. The server reads a connection's TLS state
// before the handshake, so a request's state lacks the certificate.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	if c, ok := c.(*conn); ok {
		return context.WithValue(ctx, connKey{}, c)
	}
	return ctx
}

// ClientCertificate returns the verified certificate of a request's client; nil without one.
func ClientCertificate(r *http.Request) *x509.Certificate {
	state := r.TLS
	if c, ok := r.Context().Value(connKey{}).(*conn); ok {
		now := c.ConnectionState()
		state = &now
	}
	if state == nil || len(state.VerifiedChains) == 0 {
		return nil
	}
	return state.PeerCertificates[0]
}

// Handshake answers plain HTTP with an explanation.
func (c *conn) Handshake() error {
	err := c.Conn.Handshake()
	if wrong, ok := errors.AsType[tls.RecordHeaderError](err); ok && wrong.Conn != nil && looksHTTP(wrong.RecordHeader) {
		c.refusal.Do(func() { _, _ = io.WriteString(wrong.Conn, plainHTTP) })
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

// looksHTTP detects HTTP by the first five bytes: the end of a method or of its name.
func looksHTTP(header [5]byte) bool {
	switch string(header[:]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "DELET", "OPTIO", "PATCH":
		return true
	}
	return false
}
