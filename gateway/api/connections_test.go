package api_test

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/gateway/api"
)

// A full port drops the connection that has been idle longest. It turns clients away only if all are active.
func TestAFullPortDropsWhoAsksNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ln := listenInProcess()
		end, refused := make(chan struct{}), 0
		srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/wait" {
				<-end
			}
		})}
		api.LimitConnections(srv, 2, func() { refused++ })
		served := make(chan error, 1)
		go func() { served <- srv.Serve(ln) }()
		t.Cleanup(func() {
			_ = srv.Close()
			if err := <-served; !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
		})
		ask := func(path string) *bufio.Reader {
			t.Helper()
			conn := ln.dial()
			t.Cleanup(func() { _ = conn.Close() })
			if path != "" {
				_, _ = conn.Write([]byte("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n"))
			}
			synctest.Wait()
			return bufio.NewReader(conn)
		}
		answered := func(answers *bufio.Reader) bool {
			resp, err := http.ReadResponse(answers, nil)
			if err == nil {
				_ = resp.Body.Close()
			}
			return err == nil
		}
		after(t, 0, func() {
			first := ask("") // sends nothing
			second := ask("/wait")
			third := ask("/wait") // in the place of the first
			if answered(first) {
				t.Error("the quiet connection is served still")
			}
			if answered(ask("/")) || refused != 1 {
				t.Errorf("one is served beyond the limit; %d are refused", refused)
			}
			close(end)
			if !answered(second) || !answered(third) {
				t.Error("those at work are not served to their end")
			}
			synctest.Wait()
			if !answered(ask("/")) || refused != 1 {
				t.Errorf("idle connections keep others out; %d are refused", refused)
			}
		})
	})
}

func TestTheAPIsConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ln := servePipes(t, newServer(t, newFakes(), func(c *api.Config) { c.MaxConnections = 1 }))
		quiet, other := ln.dial(), ln.dial()
		defer func(conns ...net.Conn) {
			for _, conn := range conns {
				_ = conn.Close()
			}
		}(quiet, other)
		after(t, 0, func() { // and not only after the server's timeout for headers
			if _, err := quiet.Read(make([]byte, 1)); err == nil {
				t.Error("the first stays open beside the second")
			}
		})
	})
}
