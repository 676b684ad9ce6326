package api_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

// provider verifies tokens "jwt.of.NAME", which expire after it; "jwt.of.away" cannot be verified.
type provider time.Duration

func (p provider) Verify(_ context.Context, token string) (access.Identity, error) {
	name, ok := strings.CutPrefix(token, "jwt.of.")
	switch {
	case name == "away":
		return access.Identity{}, errors.New("10.0.0.9 does not answer")
	case !ok:
		return access.Identity{}, access.ErrUnknown
	}
	return access.Identity{Issuer: "idp", Claims: map[string][]string{"sub": {name}}, Expires: time.Now().Add(time.Duration(p))}, nil
}

// claiming returns the claims for the tokens of a name.
func claiming(name string) []access.Claims {
	return []access.Claims{{Issuer: "idp", Equal: map[string]string{"sub": name}}}
}

// expiring returns the principal "me", known by tokens that are valid for so long.
func expiring(t *testing.T, validity time.Duration, verbs ...access.Verb) *access.Principals {
	t.Helper()
	me := access.Definition{Name: "me", Issued: claiming("me"), Rules: []access.Rule{{Resources: "*", Verbs: verbs}}}
	all, err := access.New([]access.Definition{me}, access.VerifiedBy(provider(validity)))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Until then it has a heartbeat every 15 s.
func TestAStreamEndsWithTheToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, on := withEvents(t, 3)
		s := newServer(t, newFakes(), on, func(c *api.Config) { c.Principals = expiring(t, 50*time.Second, access.Inspect) })
		began := time.Now()
		a := request(t, s, "GET", "/v1/events", "", "Authorization", "Bearer jwt.of.me")
		if took := time.Since(began); a.status != http.StatusOK || took != 50*time.Second || a.text != strings.Repeat(":\n\n", 4) {
			t.Errorf("%d %q after %v", a.status, a.text, took)
		}
	})
}

// A wait ends when the token expires, before the fence is armed.
func TestAWaitEndsWithTheToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakes()
		f.acquire = func(ctx context.Context, _ leasing.Request) (leasing.Lease, error) {
			<-ctx.Done()
			return leasing.Lease{}, ctx.Err()
		}
		s := newServer(t, f, func(c *api.Config) { c.Principals = expiring(t, 20*time.Second, access.Acquire) })
		began := time.Now()
		a := request(t, s, "POST", "/v1/leases", `{"resource":"orders/1","wait":"60s"}`, "Authorization", "Bearer jwt.of.me")
		if took := time.Since(began); a.status != http.StatusForbidden || !strings.Contains(a.text, "expired") || took != 20*time.Second {
			t.Errorf("%d %s after %v", a.status, a.text, took)
		}
	})
}

// The lock is kept for a repeat where the fence may have been raised.
func TestAWaitThatEndsWithTheTokenSaysWhatIsUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakes()
		f.acquire = func(ctx context.Context, _ leasing.Request) (leasing.Lease, error) {
			<-ctx.Done()
			return leasing.Lease{}, errors.Join(ctx.Err(), fence.ErrUnknown)
		}
		s := newServer(t, f, func(c *api.Config) { c.Principals = expiring(t, 20*time.Second, access.Acquire) })
		a := request(t, s, "POST", "/v1/leases", `{"resource":"orders/1","wait":"60s"}`, "Authorization", "Bearer jwt.of.me", wire.IdempotencyKey, aKey)
		if a.status != http.StatusForbidden || a.str("code") != wire.CodeDenied || !strings.HasPrefix(a.str("hint"), "Whether the lease was acquired is unknown") {
			t.Errorf("%d %s", a.status, a.text)
		}
	})
}

// If a token cannot be verified, nothing is done, and the client does not get the answer for a wrong token.
func TestATokenThatCannotBeVerifiedIsAnOutage(t *testing.T) {
	t.Parallel()
	s := newServer(t, newFakes(), func(c *api.Config) { c.Principals = expiring(t, time.Hour, access.Inspect) })
	a := request(t, s, "GET", "/v1/resources", "", "Authorization", "Bearer jwt.of.away")
	if a.status != http.StatusServiceUnavailable || strings.Contains(a.text, "10.0.0.9") {
		t.Errorf("got %d %s", a.status, a.text)
	}
}

// once verifies one token, which expires at that time.
type once time.Time

func (o once) Verify(context.Context, string) (access.Identity, error) {
	return access.Identity{Issuer: "idp", Claims: map[string][]string{"sub": {"me"}}, Expires: time.Time(o)}, nil
}

// A session of the page and its stream end with the token, and the page asks for another.
func TestASessionOfThePageEndsWithTheToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const validity = time.Minute
		_, on := withEvents(t, 3)
		me := access.Definition{Name: "me", Issued: claiming("me"), Rules: []access.Rule{{Resources: "*", Verbs: []access.Verb{access.Inspect}}}}
		all, err := access.New([]access.Definition{me}, access.VerifiedBy(once(time.Now().Add(validity))))
		if err != nil {
			t.Fatal(err)
		}
		b := newBrowser(t, transportTo(t, newServer(t, newFakes(), on, func(c *api.Config) { c.Principals = all })))
		if status, text := b.login("jwt.of.me"); status != http.StatusOK {
			t.Fatalf("log-in: %d %s", status, text)
		}
		began := time.Now()
		lines, status := b.stream(t.Context())
		if status != http.StatusOK {
			t.Fatalf("a stream: %d", status)
		}
		for range lines { // until it ends
		}
		if took := time.Since(began); took != validity {
			t.Errorf("the stream ended after %v", took)
		}
		if status, text := b.do("/", nil); status != http.StatusUnauthorized || !strings.Contains(text, `name="token"`) {
			t.Errorf("behind the end: %d %s", status, text)
		}
	})
}

// A waiter whose token is no longer trusted gets no lease, though its principal is the same.
func TestAWaitEndsWithTheTrustInItsToken(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"behind the change": false, "while it changes": true} {
		synctest.Test(t, func(t *testing.T) { distrusted(t, name, late) })
	}
}

// distrusted is a wait during which another verifier comes. If it is late, the wait gets its lease all the same.
func distrusted(t *testing.T, name string, late bool) {
	t.Helper()
	me := []access.Definition{{Name: "me", Issued: claiming("me"), Rules: []access.Rule{{Resources: "*", Verbs: []access.Verb{access.Acquire}}}}}
	all, err := access.New(me, access.VerifiedBy(provider(time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	f := newFakes()
	inner, changed := f.acquire, false
	f.acquire = func(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
		if changed {
			return inner(ctx, r) // the holder has released it
		}
		changed = true
		if _, err := all.Replace(me, access.VerifiedBy(provider(time.Hour))); err != nil {
			t.Error(err)
		}
		<-ctx.Done()
		if late {
			return inner(context.WithoutCancel(ctx), r)
		}
		return leasing.Lease{}, ctx.Err()
	}
	s := newServer(t, f, func(c *api.Config) { c.Principals = all })
	began := time.Now()
	a := request(t, s, "POST", "/v1/leases", `{"resource":"orders/1","wait":"60s"}`, "Authorization", "Bearer jwt.of.me")
	if took := time.Since(began); a.status != http.StatusForbidden || a.str("code") != wire.CodeDenied || took != 0 {
		t.Errorf("%s: %d %s after %v", name, a.status, a.text, took)
	}
	if released := len(f.released) == 1; released != late {
		t.Errorf("%s: released: %t", name, released)
	}
}
