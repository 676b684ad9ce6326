package api_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/internal/tlsfiles"
)

// fullListener counts writes to connections whose clients read no more.
type fullListener struct {
	net.Listener

	full   atomic.Bool
	writes atomic.Int32
}

func (l *fullListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &fullConn{Conn: c, l: l}, nil
}

type fullConn struct {
	net.Conn

	l      *fullListener
	closed atomic.Bool
}

func (c *fullConn) Write(p []byte) (int, error) {
	if c.l.full.Load() && !c.closed.Load() {
		c.l.writes.Add(1)
		return 0, os.ErrDeadlineExceeded // a write that would block until its deadline
	}
	return c.Conn.Write(p)
}

func (c *fullConn) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}

// The close alert of TLS would block under the lock that each new connection needs.
func TestAFullPortSendsNoCloseAlert(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := &fullListener{Listener: inner}
	a := newAuthority(t)
	cfg := &tls.Config{Certificates: []tls.Certificate{a.sign(t, a.cert)}, MinVersion: tls.VersionTLS12}
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.NotFoundHandler()}
	api.LimitConnections(srv, 1, func() {})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(tlsfiles.Listener(ln, cfg)) }()
	t.Cleanup(func() {
		_ = srv.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	quiet, err := tls.Dial("tcp", inner.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = quiet.NetConn().Close() }()
	_, _ = quiet.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	resp, err := http.ReadResponse(bufio.NewReader(quiet), nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	ln.full.Store(true)
	for ended := false; !ended; { // until the first is idle, and replaced
		other, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = other.Close() })
		_ = quiet.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		_, err = quiet.Read(make([]byte, 1))
		ended = err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	}
	if n := ln.writes.Load(); n != 0 {
		t.Errorf("%d writes before the connection was closed", n)
	}
}
