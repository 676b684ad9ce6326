//go:build unix

package gateway_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

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
	var first lease
	testenv.Paced(t, time.Second, func(ttl time.Duration) (err error) { // an acquisition that fails may raise the fence
		first, err = c.tryAcquire("r"+ttl.String(), ttl, "0s")
		return err
	})
	testenv.Eventually(t, "the lease ran out", func() bool { return strings.Contains(c.told(first.resource), "expired") })
	second := c.acquire(first.resource, "30s", "20s")
	want := fmt.Sprintf("acquired 0/%[1]s, expired %[1]s/0, superseded %[1]s/%[2]s, acquired 0/%[2]s", first.token, second.token)
	if got := c.told(first.resource); got != want {
		t.Errorf("told %s; want %s", got, want)
	}
	var released, last lease
	testenv.Paced(t, time.Second, func(ttl time.Duration) (err error) {
		begun := time.Now()
		if released, err = c.tryAcquire("quiet"+ttl.String(), ttl, "0s"); err != nil {
			return err
		}
		c.want(204, "POST", "/v1/leases/release", map[string]string{"handle": released.handle})
		if took := time.Since(begun); took > ttl*9/10 {
			return fmt.Errorf("released after %v", took)
		}
		last, err = c.tryAcquire(released.resource, ttl, "0s")
		return err
	})
	testenv.Eventually(t, "the last lease ran out", func() bool { return strings.Contains(c.told(last.resource), "expired "+last.token) })
	if got := c.told(last.resource); strings.Contains(got, "superseded") || strings.Contains(got, "expired "+released.token) {
		t.Errorf("told %s", got)
	}
}

// A lease that another gateway extends or releases does not count as expired at the one that granted it.
func TestALeaseThatAnotherGatewayLooksAfterHasNotRunOut(t *testing.T) {
	t.Parallel()
	cfg := config(t, testenv.Postgres(t))
	a, b := start(t, cfg), start(t, cfg)
	var kept, freed, marker lease
	testenv.Paced(t, 2*time.Second, func(ttl time.Duration) (err error) {
		begun := time.Now()
		if kept, err = a.tryAcquire("kept"+ttl.String(), ttl, "0s"); err != nil {
			return err
		}
		if freed, err = a.tryAcquire("freed"+ttl.String(), ttl, "0s"); err != nil {
			return err
		}
		if _, err = b.expect(200, "POST", "/v1/leases/renew", map[string]string{"handle": kept.handle, "ttl": "1m"}); err != nil {
			return err
		}
		b.want(204, "POST", "/v1/leases/release", map[string]string{"handle": freed.handle})
		if took := time.Since(begun); took > ttl*9/10 {
			return fmt.Errorf("renewed and released after %v", took)
		}
		marker, err = a.tryAcquire("marker"+ttl.String(), ttl*5/4, "0s")
		return err
	})
	testenv.Eventually(t, "a later lease ran out", func() bool { return strings.Contains(a.told(marker.resource), "expired "+marker.token) })
	if got := a.told(kept.resource) + a.told(freed.resource); strings.Contains(got, "expired") {
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
			early := a.acquire("early", "1m", "0s")
			b.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": early.handle})
			var late, marker lease
			testenv.Paced(t, 3*time.Second, func(ttl time.Duration) (err error) {
				begun := time.Now()
				if late, err = a.tryAcquire("late"+ttl.String(), ttl, "0s"); err != nil {
					return err
				}
				b.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": late.handle})
				if took := time.Since(begun); took > ttl*9/10 {
					return fmt.Errorf("released after %v", took)
				}
				marker, err = a.tryAcquire("marker"+ttl.String(), ttl+time.Second, "0s")
				return err
			})
			testenv.Eventually(t, "a later lease ran out", func() bool { return strings.Contains(a.told(marker.resource), "expired "+marker.token) })
			for _, resource := range []string{early.resource, late.resource} {
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
	l := c.acquire("orders/1001", "1m", "0s")
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
		for name, count := range map[string]*int64{"held": status.Held, "sessions": status.Sessions, "objects": status.Objects} {
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
