package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/fencegate/fencegate/client"
)

// cable passes connections on to an address. Those that exist when it is cut stay open and pass nothing on.
type cable struct {
	to       string
	withheld chan struct{} // receives when something is not passed on

	mu   sync.Mutex
	cuts int
}

func (c *cable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cuts++
}

func (c *cable) now() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cuts
}

func (c *cable) serve(t *testing.T) (addr string) {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", c.to)
			if err != nil {
				_ = in.Close()
				continue
			}
			cuts := c.now()
			go c.pass(in, out, cuts)
			go c.pass(out, in, cuts)
		}
	}()
	return ln.Addr().String()
}

func (c *cable) pass(from, to net.Conn, cuts int) {
	defer func() { _ = to.Close() }()
	for b := make([]byte, 4096); ; {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		if c.now() == cuts {
			_, _ = to.Write(b[:n])
			continue
		}
		select {
		case c.withheld <- struct{}{}:
		default:
		}
	}
}

func TestARenewalAfterASilentlyCutConnectionMakesANewOne(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"valid_ms":30000}`))
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	wire := &cable{to: srv.Listener.Addr().String(), withheld: make(chan struct{}, 1)}
	c, err := client.New(client.Config{URL: "https://" + wire.serve(t), TLS: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}})
	if err != nil {
		t.Fatal(err)
	}
	if err := renew(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	wire.cut()
	sent, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-wire.withheld
		cancel()
	}()
	if err := renew(sent, c); !errors.Is(err, context.Canceled) {
		t.Errorf("on the cut connection: %v", err)
	}
	if err := renew(t.Context(), c); err != nil {
		t.Errorf("after the cut: %v", err)
	}
}
