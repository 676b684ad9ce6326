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
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/internal/certs"
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
	synctest.Test(t, func(t *testing.T) {
		inner := listenInProcess()
		ln := &fullListener{Listener: inner}
		cfg := &tls.Config{Certificates: []tls.Certificate{certs.New(certs.For("localhost")).TLS}, MinVersion: tls.VersionTLS12}
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
		conn := inner.dial()
		defer func() { _ = conn.Close() }()
		quiet := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
		_, _ = quiet.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
		resp, err := http.ReadResponse(bufio.NewReader(quiet), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		synctest.Wait() // it is idle
		ln.full.Store(true)
		other := inner.dial()
		defer func() { _ = other.Close() }()
		after(t, 0, func() {
			if _, err := conn.Read(make([]byte, 1)); err == nil {
				t.Error("the idle connection stays open beside the next")
			}
		})
		if n := ln.writes.Load(); n != 0 {
			t.Errorf("%d writes before the connection was closed", n)
		}
	})
}
