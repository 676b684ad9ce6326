package api_test

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/gateway/api"
)

// A body that does not arrive delays its answer and keeps the connection for BodyTimeout and no longer, on every path,
// whether or not the path reads it.
func TestBodyThatDoesNotComeKeepsNoConnection(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]option{
		"with a token":    func(c *api.Config) { c.BearerToken = "secret" },
		"without a token": func(*api.Config) {},
	} {
		for _, request := range []string{
			"POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
			"POST /v1/leases HTTP/1.1\r\nHost: localhost\r\n",
			"POST /v1/leases HTTP/1.1\r\nHost: evil.example\r\nContent-Type: application/json\r\n",
			"GET /healthz HTTP/1.1\r\nHost: localhost\r\n",
			"PUT /nowhere HTTP/1.1\r\nHost: localhost\r\n",
		} {
			for _, body := range []string{"Content-Length: 1000\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"re"} {
				synctest.Test(t, func(t *testing.T) {
					conn := servePipes(t, newServer(t, newFakes(), config)).dial()
					defer func() { _ = conn.Close() }()
					after(t, 30*time.Second, func() {
						if err := answered(conn, request+body); err != nil {
							t.Errorf("%s: %q: %v", name, request+body, err)
						}
					})
				})
			}
		}
	}
}

// servePipes runs a server in a bubble until the test ends.
func servePipes(t *testing.T, s *api.Server) *pipes {
	t.Helper()
	ln := listenInProcess()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return ln
}

// answered reports whether a request is answered, and its connection closed.
func answered(conn io.ReadWriter, request string) error {
	if _, err := io.WriteString(conn, request); err != nil {
		return err
	}
	from := bufio.NewReader(conn)
	answer, err := http.ReadResponse(from, nil)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, answer.Body)
	if err == nil {
		_, err = io.Copy(io.Discard, from) // to its end
	}
	return err
}
