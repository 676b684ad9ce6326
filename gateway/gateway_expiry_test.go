//go:build unix

package gateway_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/wire"
)

// eventsOf returns the kinds of events about a resource, with their tokens.
func (c *client) eventsOf(resource string) string {
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
	pg := testenv.Postgres(t)
	c := start(t, config(t, pg))
	first := c.acquire("r", "30s")
	c.runOut(first, pg)
	testenv.Eventually(t, "the lease ran out", func() bool { return strings.Contains(c.eventsOf("r"), "expired") })
	second := c.acquire("r", "30s")
	want := fmt.Sprintf("acquired 0/%[1]s, expired %[1]s/0, superseded %[1]s/%[2]s, acquired 0/%[2]s", first.token, second.token)
	if got := c.eventsOf("r"); got != want {
		t.Errorf("events %s; want %s", got, want)
	}
	released := c.acquire("quiet", "30s")
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": released.handle})
	last := c.acquire("quiet", "30s")
	c.runOut(last, pg)
	testenv.Eventually(t, "the last lease ran out", func() bool { return strings.Contains(c.eventsOf("quiet"), "expired "+last.token) })
	want = fmt.Sprintf("acquired 0/%[1]s, released %[1]s/0, acquired 0/%[2]s, expired %[2]s/0", released.token, last.token)
	if got := c.eventsOf("quiet"); got != want {
		t.Errorf("events %s; want %s", got, want)
	}
}

// A lease that another gateway extends or releases does not count as expired at the one that granted it, and the next
// one here does not supersede a released one, neither before nor after its deadline.
func TestALeaseThatAnotherGatewayLooksAfterHasNotRunOut(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(gateway.Config) gateway.Config{
		"redis":      func(cfg gateway.Config) gateway.Config { return cfg },
		"postgresql": alone,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t)
			cfg := change(config(t, pg))
			a, b := start(t, cfg), start(t, cfg)
			kept, early, late := a.acquire("kept", "30s"), a.acquire("early", "30s"), a.acquire("late", "30s")
			b.want(http.StatusOK, "POST", "/v1/leases/renew", map[string]string{"handle": kept.handle, "ttl": "1m"})
			for _, l := range []lease{early, late} {
				b.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.handle})
			}
			a.g.PassDeadline("kept")
			a.g.PassDeadline("late")
			marker := a.acquire("marker", "30s")
			a.runOut(marker, pg)
			testenv.Eventually(t, "a later lease ran out", func() bool { return strings.Contains(a.eventsOf("marker"), "expired "+marker.token) })
			for _, resource := range []string{"early", "late"} {
				a.acquire(resource, "30s")
			}
			for _, resource := range []string{"kept", "early", "late"} {
				if got := a.eventsOf(resource); strings.Contains(got, "expired") || strings.Contains(got, "superseded") {
					t.Errorf("events %s", got)
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
	l := c.acquire("orders/1001", "1m")
	if err := c.upload(l, "1001/a.txt", "x"); err != nil {
		t.Fatal(err)
	}
	c.connect(pg, l)
	testenv.Eventually(t, "all parts answer in time", func() error {
		status, err := c.api().Status(t.Context())
		if err != nil {
			return err
		}
		if len(status.Lock.Nodes) != 3 || status.Lock.Kind != "redis" || status.Postgres.State != wire.PartOK || status.Postgres.Identity == "" || !status.Ready {
			return fmt.Errorf("%+v", status)
		}
		for _, n := range status.Lock.Nodes {
			if n.State != wire.NodeAdmitted || n.Name == "" {
				return fmt.Errorf("%+v", n)
			}
		}
		for name, count := range map[string]*int64{"held": status.HeldLeases, "sessions": status.Sessions, "objects": status.Objects} {
			if count == nil || *count != 1 {
				return fmt.Errorf("%s: %v", name, count)
			}
		}
		if status.Waiters == nil || *status.Waiters != 0 {
			return fmt.Errorf("waiters: %v", status.Waiters)
		}
		return nil
	})
}
