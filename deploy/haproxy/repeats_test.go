//go:build balancer && unix

package haproxy_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/internal/stack/stacktest"
)

// A 503 may come after the fence was raised, so a request that does something again each time goes to one gateway only.
func TestOnlyWhatMayBeRepeatedIsAnsweredByAnotherGateway(t *testing.T) {
	lb := freePorts(t)
	var asked atomic.Int64
	var fakes []stack.Ports
	for range gateways {
		server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
			if !strings.HasPrefix(in.URL.Path, "/readyz") {
				asked.Add(1)
				out.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
		t.Cleanup(server.Close)
		fake := freePorts(t)
		fake.API = server.Listener.Addr().String()
		fakes = append(fakes, fake)
	}
	balance(t, stacktest.New(t), lb, fakes...)
	for _, c := range []struct {
		path, key string
		repeated  bool
	}{
		{"/v1/resources/orders%2F1/revoke", "", false},
		{"/v1/resources/orders%2F1/revoke", "key", false},
		{"/v1/sessions/1/end", "", false},
		{"/v1/leases", "", false},
		{"/v1/leases/all", "", false},
		{"/v1/leases", "key", true},
		{"/v1/leases/all", "key", true},
		{"/v1/leases/renew", "", true},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+lb.API+c.path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if c.key != "" {
			req.Header.Set("Idempotency-Key", c.key)
		}
		asked.Store(0)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if n := asked.Load(); (n > 1) != c.repeated || n == 0 {
			t.Errorf("%s with the key %q reached %d gateways; repeated: want %v", c.path, c.key, n, c.repeated)
		}
	}
}
