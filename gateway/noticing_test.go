//go:build unix

package gateway_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/testenv"
)

// told returns the kinds of events about a resource, with their tokens.
func (c *client) told(resource string) string {
	c.t.Helper()
	var all []string
	for _, e := range c.events() {
		if e.Resource == resource {
			all = append(all, fmt.Sprintf("%s %s/%s", e.Kind, e.Presented, e.Recorded))
		}
	}
	return strings.Join(all, ", ")
}

// A lease that expires is reported, and so is the next one armed over it. A released lease causes neither event.
func TestALeaseThatRunsOutIsTold(t *testing.T) {
	t.Parallel()
	c := start(t, config(t, testenv.Postgres(t)))
	first := c.acquire("r", "1s", "0s")
	testenv.Eventually(t, "the lease ran out", func() bool { return strings.Contains(c.told("r"), "expired") })
	second := c.acquire("r", "30s", "20s")
	want := fmt.Sprintf("acquired 0/%[1]s, expired %[1]s/0, superseded %[1]s/%[2]s, acquired 0/%[2]s", first.token, second.token)
	if got := c.told("r"); got != want {
		t.Errorf("told %s; want %s", got, want)
	}
	released := c.acquire("quiet", "1s", "0s")
	c.want(204, "POST", "/v1/leases/release", map[string]string{"handle": released.handle})
	last := c.acquire("quiet", "1s", "0s")
	testenv.Eventually(t, "the last lease ran out", func() bool { return strings.Contains(c.told("quiet"), "expired "+last.token) })
	if got := c.told("quiet"); strings.Contains(got, "superseded") || strings.Contains(got, "expired "+released.token) {
		t.Errorf("told %s", got)
	}
}

// A lease that another gateway extends or releases does not count as expired at the one that granted it.
func TestALeaseThatAnotherGatewayLooksAfterHasNotRunOut(t *testing.T) {
	t.Parallel()
	cfg := config(t, testenv.Postgres(t))
	a, b := start(t, cfg), start(t, cfg)
	kept, freed := a.acquire("kept", "2s", "0s"), a.acquire("freed", "2s", "0s")
	b.want(200, "POST", "/v1/leases/renew", map[string]string{"handle": kept.handle, "ttl": "30s"})
	b.want(204, "POST", "/v1/leases/release", map[string]string{"handle": freed.handle})
	marker := a.acquire("marker", "2500ms", "0s")
	testenv.Eventually(t, "a later lease ran out", func() bool { return strings.Contains(a.told("marker"), "expired "+marker.token) })
	if got := a.told("kept") + a.told("freed"); strings.Contains(got, "expired") {
		t.Errorf("told %s", got)
	}
}

// A lease that another gateway released is not superseded by the next one here, neither before nor after its deadline.
func TestALeaseThatAnotherGatewayReleasedIsNotSuperseded(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*gateway.Config){
		"redis":      func(*gateway.Config) {},
		"postgresql": func(cfg *gateway.Config) { cfg.RedisNodes, cfg.InitNodes, cfg.PostgresLeases = nil, false, true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, testenv.Postgres(t))
			change(&cfg)
			a, b := start(t, cfg), start(t, cfg)
			for resource, ttl := range map[string]string{"early": "30s", "late": "3s"} {
				first := a.acquire(resource, ttl, "0s")
				b.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": first.handle})
			}
			marker := a.acquire("marker", "4s", "0s")
			testenv.Eventually(t, "a later lease ran out", func() bool { return strings.Contains(a.told("marker"), "expired "+marker.token) })
			for _, resource := range []string{"early", "late"} {
				a.acquire(resource, "30s", "0s")
				if got := a.told(resource); strings.Contains(got, "superseded") {
					t.Errorf("told %s", got)
				}
			}
		})
	}
}

func TestTheStatusNamesNodesAndPostgreSQL(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	guarded(t, pg)
	c := start(t, config(t, pg))
	l := c.acquire("orders/1001", "30s", "0s")
	if err := c.upload(l, "1001/a.txt", "x"); err != nil {
		t.Fatal(err)
	}
	c.connect(pg, l)
	status, err := c.api().Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(status.Lock.Nodes) != 3 || status.Lock.Kind != "redis" || status.Postgres.State != wire.PartOK || status.Postgres.Identity == "" || !status.Ready {
		t.Errorf("%+v", status)
	}
	for _, n := range status.Lock.Nodes {
		if n.State != wire.NodeAdmitted || n.Name == "" {
			t.Errorf("%+v", n)
		}
	}
	for name, count := range map[string]*int64{"held": status.Held, "sessions": status.Sessions, "objects": status.Objects} {
		if count == nil || *count != 1 {
			t.Errorf("%s: %v", name, count)
		}
	}
	if status.Waiters == nil || *status.Waiters != 0 {
		t.Errorf("waiters: %v", status.Waiters)
	}
}
