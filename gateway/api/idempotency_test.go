package api_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

const aKey = "0123456789-abcdef"

// keeping makes f hold what is acquired, once, as a source and a fence do.
func keeping(f *fakes) {
	acquire := f.acquire
	f.acquire = func(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
		if f.sealHash != nil {
			return leasing.Lease{}, &leasing.HeldError{Resource: r.Resource}
		}
		f.sealHash = r.SealHash
		lease, err := acquire(ctx, r)
		lease.Grant.Seal = fence.Seal{}
		return lease, err
	}
	f.record.ArmedAt = time.Now()
}

func TestARepeatOfAnAcquisitionIsTheSameLeaseAtEachGateway(t *testing.T) {
	t.Parallel()
	f := newFakes()
	keeping(f)
	one, other := newServer(t, f), newServer(t, f)
	body := `{"resource":"orders/1001","holder":"worker-a"}`
	first := request(t, one, "POST", "/v1/leases", body, wire.IdempotencyKey, aKey)
	if first.status != http.StatusCreated || !strings.HasPrefix(first.str("grant"), "34.") {
		t.Fatalf("%d %s", first.status, first.text)
	}
	for _, s := range []*api.Server{one, other} {
		again := request(t, s, "POST", "/v1/leases", `{"resource":"orders/1001","holder":"worker-a","wait":"0s"}`, wire.IdempotencyKey, aKey)
		if again.status != http.StatusCreated || again.str("grant") != first.str("grant") {
			t.Errorf("%d %s", again.status, again.text)
		}
	}
	if a := request(t, other, "POST", "/v1/leases", body, wire.IdempotencyKey, aKey+"-another"); a.status != http.StatusConflict {
		t.Errorf("another key: %d %s", a.status, a.text)
	}
	if a := request(t, other, "POST", "/v1/leases", body); a.status != http.StatusConflict {
		t.Errorf("no key: %d %s", a.status, a.text)
	}
	ended := time.Now()
	f.record.EndedAt = &ended
	if a := request(t, other, "POST", "/v1/leases", body, wire.IdempotencyKey, aKey); a.status != http.StatusConflict {
		t.Errorf("a lease that is over: %d %s", a.status, a.text)
	}
}

// The first request waits at another gateway. Its connection is lost, and it gets the lease while the repeat waits.
func TestARepeatThatWaitsReturnsTheLeaseThatTheFirstRequestGotMeanwhile(t *testing.T) {
	t.Parallel()
	f := newFakes()
	keeping(f)
	f.acquire = func(_ context.Context, r leasing.Request) (leasing.Lease, error) {
		f.sealHash = r.SealHash
		return leasing.Lease{}, &leasing.HeldError{Resource: r.Resource}
	}
	s := newServer(t, f)
	body := `{"resource":"orders/1001","holder":"worker-a","wait":"1s"}`
	if a := request(t, s, "POST", "/v1/leases", body, wire.IdempotencyKey, aKey); a.status != http.StatusCreated || !strings.HasPrefix(a.str("grant"), "34.") {
		t.Errorf("%d %s", a.status, a.text)
	}
	f.acquire = func(_ context.Context, r leasing.Request) (leasing.Lease, error) {
		return leasing.Lease{}, &leasing.HeldError{Resource: r.Resource}
	}
	if a := request(t, s, "POST", "/v1/leases", body, wire.IdempotencyKey, aKey+"-another"); a.status != http.StatusConflict {
		t.Errorf("another key: %d %s", a.status, a.text)
	}
}

// The look for an earlier lease must not take the place of the acquisition, which has its own way to PostgreSQL.
func TestAFirstLookWithoutAnAnswerIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakes()
		s := newServer(t, f, func(c *api.Config) { c.Fences = silent{f} })
		after(t, patience, func() {
			a := request(t, s, "POST", "/v1/leases", `{"resource":"orders/1001","wait":"1s"}`, wire.IdempotencyKey, aKey)
			if a.status != http.StatusCreated {
				t.Errorf("%d %s", a.status, a.text)
			}
		})
	})
}

func TestAKeyIsOfOneRequestOfOnePrincipal(t *testing.T) {
	t.Parallel()
	s := newServer(t, newFakes())
	for name, c := range map[string]struct {
		body, key string
		status    int
	}{
		"short": {`{"resource":"a"}`, "short", http.StatusBadRequest},
		"space": {`{"resource":"a"}`, "0123456789 abcdef", http.StatusBadRequest},
		"long":  {`{"resource":"a"}`, strings.Repeat("k", 129), http.StatusBadRequest},
	} {
		if a := request(t, s, "POST", "/v1/leases", c.body, wire.IdempotencyKey, c.key); a.status != c.status {
			t.Errorf("%s: %d %s", name, a.status, a.text)
		}
	}
	request(t, s, "POST", "/v1/leases", `{"resource":"a"}`, wire.IdempotencyKey, aKey)
	a := request(t, s, "POST", "/v1/leases", `{"resource":"a","ttl":"7s"}`, wire.IdempotencyKey, aKey)
	if a.status != http.StatusUnprocessableEntity || a.str("code") != wire.CodeKeyReused {
		t.Errorf("%d %s", a.status, a.text)
	}
}

// A gateway remembers a key's request for ten minutes. Another request with the key is an acquisition then.
func TestAKeyIsRememberedForTenMinutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, newFakes())
		request(t, s, "POST", "/v1/leases", `{"resource":"a"}`, wire.IdempotencyKey, aKey)
		for _, c := range []struct {
			after  time.Duration
			status int
		}{{10 * time.Minute, http.StatusUnprocessableEntity}, {1, http.StatusCreated}} {
			time.Sleep(c.after)
			if a := request(t, s, "POST", "/v1/leases", `{"resource":"a","ttl":"7s"}`, wire.IdempotencyKey, aKey); a.status != c.status {
				t.Errorf("%v later: %d %s", c.after, a.status, a.text)
			}
		}
	})
}

func TestRequestsHaveIDs(t *testing.T) {
	t.Parallel()
	s := newServer(t, newFakes())
	for sent, kept := range map[string]bool{"": false, "from-a-balancer.7": true, "two words": false, "line\tend": false, strings.Repeat("x", 129): false} {
		a := request(t, s, "GET", "/v1/nothing", "", "X-Request-Id", sent)
		id := a.header.Get("X-Request-Id")
		if id == "" || (id == sent) != kept || a.str("request_id") != id {
			t.Errorf("%q: %q in the header, %q in the problem", sent, id, a.str("request_id"))
		}
	}
}

type quarantined struct{ error }

func (quarantined) Left() time.Duration { return 40500 * time.Millisecond }
func (quarantined) Tell() string        { return "quarantine, 41 s left" }

func TestUnavailableSaysWhenToAskAgain(t *testing.T) {
	t.Parallel()
	f := newFakes()
	f.acquire = func(context.Context, leasing.Request) (leasing.Lease, error) {
		return leasing.Lease{}, &leasing.UnavailableError{Part: wire.PartRedis, Cause: quarantined{leasing.ErrUnavailable}}
	}
	a := request(t, newServer(t, f), "POST", "/v1/leases", `{"resource":"a"}`)
	if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") != "41" || a.str("detail") != "quarantine, 41 s left" {
		t.Errorf("%d %v %s", a.status, a.header, a.text)
	}
}

func TestReadinessIsOfEachSurface(t *testing.T) {
	t.Parallel()
	away := func(context.Context) error { return leasing.ErrUnavailable }
	here := func(context.Context) error { return nil }
	s := newServer(t, newFakes(), func(c *api.Config) {
		c.Surfaces = []string{wire.SurfacePG, wire.SurfaceS3}
		c.Checks = []api.Check{{Part: wire.PartRedis, Run: away, For: []string{wire.SurfaceLease}}, {Part: wire.PartPostgres, Run: here}}
	})
	for path, status := range map[string]int{
		"/readyz": 503, "/readyz?for=lease": 503, "/readyz?for=pg": 200, "/readyz?for=s3": 200, "/readyz?for=sql": 503, "/readyz?for=x": 400, "/readyz?for=s3&leaving=404": 200,
	} {
		if a := request(t, s, "GET", path, ""); a.status != status {
			t.Errorf("%s: %d %s", path, a.status, a.text)
		}
	}
	s.Leave()
	for path, status := range map[string]int{"/readyz?for=s3": 503, "/readyz?for=s3&leaving=404": 404} {
		if a := request(t, s, "GET", path, ""); a.status != status {
			t.Errorf("leaving: %s: %d %s", path, a.status, a.text)
		}
	}
}
