package gateway_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	goclient "github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/internal/testenv"
)

// In the order of docs/operations.md each gateway accepts what the others issue. In another order a client that knows
// all gateways keeps its lease.
func TestAMasterKeyIsReplacedUnderALease(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	cfg := config(t, pg)
	next := "k2:" + strings.Repeat("a5", 32)
	under := func(keys ...string) *client {
		own := cfg
		own.MasterKey = strings.Join(keys, "\n")
		return start(t, own)
	}
	before, added, used, after := under(masterKey), under(masterKey, next), under(next, masterKey), under(next)
	for _, pair := range [][2]*client{{before, added}, {added, used}, {used, after}} {
		for i, issuer := range pair {
			l, other := issuer.acquire("r", "1m"), pair[1-i]
			other.want(http.StatusOK, "POST", "/v1/leases/renew", map[string]string{"handle": l.handle, "ttl": "1m"})
			other.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.handle})
		}
	}
	l := used.acquire("r", "1m")
	a := before.want(http.StatusBadRequest, "POST", "/v1/leases/renew", map[string]string{"handle": l.handle, "ttl": "1m"})
	if !strings.Contains(a.text("detail"), "another master key") {
		t.Errorf("%v", a.Body)
	}
	both, err := goclient.New(goclient.Config{URL: "http://" + before.g.Addrs().API + ",http://" + used.g.Addrs().API})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := both.Renew(t.Context(), l.handle, time.Minute); err != nil {
		t.Errorf("a client of both gateways: %v", err)
	}
}
