package api_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/api"
)

// A body that does not arrive delays its answer and keeps the connection for BodyTimeout and no longer, on every path,
// whether or not the path reads it.
func TestBodyThatDoesNotComeKeepsNoConnection(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]func(*api.Config){
		"with a token":    func(c *api.Config) { c.BearerToken = "secret" },
		"without a token": func(*api.Config) {},
	} {
		s := newServer(t, newFakes(), config, func(c *api.Config) { c.BodyTimeout = 50 * time.Millisecond })
		url, _ := serve(t, s)
		for _, request := range []string{
			"POST /v1/leases HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
			"POST /v1/leases HTTP/1.1\r\nHost: localhost\r\n",
			"POST /v1/leases HTTP/1.1\r\nHost: evil.example\r\nContent-Type: application/json\r\n",
			"GET /healthz HTTP/1.1\r\nHost: localhost\r\n",
			"PUT /nowhere HTTP/1.1\r\nHost: localhost\r\n",
		} {
			for _, body := range []string{"Content-Length: 1000\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"re"} {
				if err := answered(strings.TrimPrefix(url, "http://"), request+body); err != nil {
					t.Errorf("%s: %q: %v", name, request+body, err)
				}
			}
		}
	}
}

// answered reports whether a request is answered, and its connection closed.
func answered(addr, request string) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second)) // 50 ms are needed
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
