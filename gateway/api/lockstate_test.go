package api_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

// dialing is a source with a server that cannot be reached.
type dialing struct{ leases }

func (d dialing) Inspect(ctx context.Context, resources ...string) ([]leasing.Inspection, error) {
	all, err := d.leases.Inspect(ctx, resources...)
	all[0].Members[1].Err = errors.New("dial tcp 10.1.2.3:6379: connection refused")
	return all, err
}

// A client that may inspect one resource sees how many servers there are and their state, but not their names.
func TestServersAreNamedToWhoMayInspectEverything(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule string
		all  bool
	}{{"*", true}, {"orders/*", false}} {
		f := newFakes()
		s := newServer(t, f, func(cfg *api.Config) {
			cfg.Principals, cfg.Leases = inspector(t, c.rule), dialing{leases{f}}
			cfg.Status = func(context.Context) wire.Status {
				return wire.Status{Keys: []wire.KeyStatus{{ID: "node-1-key", Fingerprint: "ab"}}, Lock: wire.LockStatus{Nodes: []wire.NodeStatus{
					{Name: "node-1", State: wire.NodeAdmitted}, {Name: "node-2", State: wire.PartAway, QuarantineMS: 7, Warning: "10.1.2.3 evicts keys"},
				}}}
			}
		})
		for _, path := range []string{"/v1/resources/orders/1001", "/v1/status"} {
			a := request(t, s, "GET", path, "", "Authorization", "Bearer me")
			if a.status != http.StatusOK {
				t.Fatalf("%s: %d %s", path, a.status, a.text)
			}
			for _, text := range []string{"10.1.2.3", "node-1", "node-2"} {
				if strings.Contains(a.text, text) != c.all {
					t.Errorf("%s with inspect on %s: %s is there: %v; %s", path, c.rule, text, !c.all, a.text)
				}
			}
			for _, text := range []string{`"name":"1"`, `"name":"2"`} {
				if strings.Contains(a.text, text) == c.all {
					t.Errorf("%s with inspect on %s: %s", path, c.rule, a.text)
				}
			}
			if path == "/v1/status" && (!strings.Contains(a.text, `"state":"away"`) || !strings.Contains(a.text, `"quarantine_ms":7`)) {
				t.Errorf("the states are missing: %s", a.text)
			}
			if path == "/v1/status" && strings.Contains(a.text, "node-1-key") != c.all {
				t.Errorf("keys with inspect on %s: %s", c.rule, a.text)
			}
			if path != "/v1/status" && !c.all && !strings.Contains(a.text, `"error":"no answer"`) {
				t.Errorf("that a server does not answer is missing: %s", a.text)
			}
		}
	}
}

// A server that issued no token has none in JSON: no Go client can parse the token "0".
func TestAGoClientReadsALockWithoutAToken(t *testing.T) {
	t.Parallel()
	f := newFakes()
	f.unknown = true
	served := httptest.NewServer(newServer(t, f).Handler())
	t.Cleanup(served.Close)
	c, err := client.New(client.Config{URL: served.URL})
	if err != nil {
		t.Fatal(err)
	}
	known, err := c.Inspect(t.Context(), f.record.Resource)
	if err != nil {
		t.Fatal(err)
	}
	lock := known.Lock
	if lock == nil || lock.Token != nil || len(lock.Servers) != 2 || lock.Servers[1].Token != nil {
		t.Fatalf("got %+v; want no token of the lock and of node-2", lock)
	}
	if issued := lock.Servers[0].Token; issued == nil || *issued != 34 {
		t.Errorf("node-1 issued %v, want 34", issued)
	}
}
