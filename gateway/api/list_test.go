package api_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/api"
)

// shelf holds a few resources, some of them held.
type shelf struct {
	*fakes

	all  []fence.Record
	ttls map[string]time.Duration
	away error
	asks atomic.Int32 // rounds
}

func (s *shelf) List(_ context.Context, prefix, after string, limit int) (found []fence.Record, err error) {
	for _, r := range s.all {
		if strings.HasPrefix(r.Resource, prefix) && r.Resource > after && len(found) < limit {
			found = append(found, r)
		}
	}
	return found, s.err
}

// onShelf is the source of their leases.
type onShelf struct {
	leases

	shelf *shelf
}

func (s onShelf) Inspect(_ context.Context, resources ...string) (all []leasing.Inspection, err error) {
	s.shelf.asks.Add(1)
	for _, name := range resources {
		ttl, held := s.shelf.ttls[name]
		all = append(all, leasing.Inspection{Resource: name, Locked: held, TTL: ttl})
	}
	return all, s.shelf.away
}

func newShelf(t *testing.T) (*shelf, *api.Server) {
	t.Helper()
	ended := time.Unix(1700000000, 0)
	shelf := &shelf{fakes: newFakes(), ttls: map[string]time.Duration{"orders/3": time.Second, "orders/5": -1}}
	for _, name := range []string{"invoices/1", "orders/1", "orders/2", "orders/3", "orders/4", "orders/5"} {
		shelf.all = append(shelf.all, fence.Record{Resource: name, Token: 1})
	}
	shelf.all[1].EndedAt = &ended
	return shelf, newServer(t, shelf.fakes, func(c *api.Config) { c.Leases, c.Fences = onShelf{leases{shelf.fakes}, shelf}, shelf })
}

// stated returns the resources of an answer with their states.
func stated(t *testing.T, a answer) string {
	t.Helper()
	if a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.text)
	}
	var all []string
	for _, one := range a.body["resources"].([]any) {
		one := one.(map[string]any)
		all = append(all, one["resource"].(string)+" "+one["state"].(string))
	}
	return strings.Join(all, ", ")
}

func TestAListTellsLiveFromExpiredAndReleased(t *testing.T) {
	t.Parallel()
	shelf, s := newShelf(t)
	if got := stated(t, request(t, s, "GET", "/v1/resources?prefix=orders", "")); got != "orders/1 released, orders/2 expired, orders/3 live, orders/4 expired, orders/5 live" {
		t.Error(got)
	}
	if n := shelf.asks.Load(); n != 1 {
		t.Errorf("%d rounds for one page", n)
	}
	a := request(t, s, "GET", "/v1/resources?held=true&limit=1", "")
	if got := stated(t, a); got != "orders/3 live" || a.str("next") != "orders/4" {
		t.Errorf("%s, then after %q", got, a.str("next"))
	}
	a = request(t, s, "GET", "/v1/resources?held=true&limit=1&after=orders/4", "")
	if got := stated(t, a); got != "orders/5 live" || a.str("next") != "" {
		t.Errorf("%s, then after %q", got, a.str("next"))
	}
	shelf.away, shelf.ttls = leasing.ErrUnavailable, nil
	if got := stated(t, request(t, s, "GET", "/v1/resources?prefix=orders/&limit=2", "")); got != "orders/1 released, orders/2 unknown" {
		t.Errorf("while the lock is away: %s", got)
	}
	if a := request(t, s, "GET", "/v1/resources?held=true", ""); a.status != http.StatusServiceUnavailable || a.str("part") != "redis" {
		t.Errorf("what is held, while the lock is away: %d %s", a.status, a.text)
	}
	if a := request(t, s, "GET", "/v1/resources?held=true&prefix=nothing", ""); a.status != http.StatusOK {
		t.Errorf("nothing to ask about: %d %s", a.status, a.text)
	}
}

func TestTheStatusSaysWhatIsAway(t *testing.T) {
	t.Parallel()
	var failing error
	s := newServer(t, newFakes(), func(c *api.Config) {
		c.Checks = []api.Check{
			{Part: "postgresql", Run: func(context.Context) error { return failing }},
			{Part: "redis", Run: func(context.Context) error { return &api.DegradedError{What: "1 of 3 is away"} }},
		}
	})
	status := func() (postgres, lock map[string]any, ready any) {
		t.Helper()
		a := request(t, s, "GET", "/v1/status", "")
		if a.status != http.StatusOK {
			t.Fatalf("%d %s", a.status, a.text)
		}
		return a.body["postgresql"].(map[string]any), a.body["lock"].(map[string]any), a.body["ready"]
	}
	if postgres, lock, ready := status(); postgres["state"] != "ok" || lock["state"] != "ok" || lock["detail"] != "1 of 3 is away" || ready != true {
		t.Errorf("%v %v %v", postgres, lock, ready)
	}
	failing = errors.New("dial 10.0.0.1: refused")
	if postgres, lock, ready := status(); postgres["state"] != "away" || strings.Contains(postgres["detail"].(string), "10.0.0.1") || lock["state"] != "ok" || ready != false {
		t.Errorf("%v %v %v", postgres, lock, ready)
	}
}
