package api_test

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/api"
)

// A full port drops the connection that has been idle longest. It turns clients away only if all are active.
func TestAFullPortDropsWhoAsksNothing(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	atWork, end, refused := make(chan struct{}), make(chan struct{}), make(chan struct{}, 1)
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			atWork <- struct{}{}
			<-end
		}
	})}
	api.LimitConnections(srv, 2, func() {
		select {
		case refused <- struct{}{}:
		default:
		}
	})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	t.Cleanup(func() {
		_ = srv.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	dial := func() (net.Conn, *bufio.Reader) {
		t.Helper()
		conn, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		return conn, bufio.NewReader(conn)
	}
	ask := func(conn net.Conn, path string) {
		_, _ = conn.Write([]byte("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n"))
	}
	answered := func(answers *bufio.Reader) bool {
		resp, err := http.ReadResponse(answers, nil)
		if err == nil {
			_ = resp.Body.Close()
		}
		return err == nil
	}
	_, ofFirst := dial() // sends nothing
	second, ofSecond := dial()
	ask(second, "/wait")
	<-atWork
	third, ofThird := dial()
	ask(third, "/wait") // in the place of the first
	<-atWork
	if answered(ofFirst) {
		t.Error("the quiet connection is served still")
	}
	fourth, ofFourth := dial()
	ask(fourth, "/")
	if answered(ofFourth) {
		t.Error("one is served beyond the limit")
	}
	<-refused
	close(end)
	if !answered(ofSecond) || !answered(ofThird) {
		t.Error("those at work are not served to their end")
	}
	for began := time.Now(); ; { // until the server has noticed that they are idle
		fifth, ofFifth := dial()
		if ask(fifth, "/"); answered(ofFifth) {
			return
		}
		if time.Since(began) > time.Minute {
			t.Fatal("idle connections keep others out")
		}
	}
}

func TestTheAPIsConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	url, stop := serve(t, newServer(t, newFakes(), func(c *api.Config) { c.MaxConnections = 1 }))
	defer stop()
	quiet, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = quiet.Close() }()
	other, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	_ = quiet.SetDeadline(time.Now().Add(8 * time.Second)) // shorter than a server's timeout for headers
	if _, err := quiet.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the first stays open beside the second: %v", err)
	}
}
