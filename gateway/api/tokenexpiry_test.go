package api_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/internal/testenv"
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

// shortly returns the principal "me", known by tokens that expire in half a second.
func shortly(t *testing.T, verbs ...access.Verb) *access.Principals {
	t.Helper()
	return expiring(t, 500*time.Millisecond, verbs...)
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

func TestAStreamEndsWithTheToken(t *testing.T) {
	t.Parallel()
	feed := activity.New(activity.Config{})
	defer feed.Close()
	testenv.Paced(t, 500*time.Millisecond, func(validity time.Duration) error {
		s := newServer(t, newFakes(), func(c *api.Config) { c.Principals, c.Events = expiring(t, validity, access.Inspect), feed })
		began := time.Now()
		a := request(t, s, "GET", "/v1/events", "", "Authorization", "Bearer jwt.of.me")
		if took := time.Since(began); a.status != http.StatusOK || took < validity*4/5 || took > validity+5*time.Second {
			return fmt.Errorf("%d after %v", a.status, took)
		}
		return nil
	})
}

// A wait ends when the token expires, before the fence is armed.
func TestAWaitEndsWithTheToken(t *testing.T) {
	t.Parallel()
	f := newFakes()
	f.acquire = func(ctx context.Context, _ leasing.Request) (leasing.Lease, error) {
		<-ctx.Done()
		return leasing.Lease{}, ctx.Err()
	}
	testenv.Paced(t, 500*time.Millisecond, func(validity time.Duration) error {
		s := newServer(t, f, func(c *api.Config) { c.Principals = expiring(t, validity, access.Acquire) })
		began := time.Now()
		a := request(t, s, "POST", "/v1/leases", `{"resource":"orders/1","wait":"60s"}`, "Authorization", "Bearer jwt.of.me")
		if took := time.Since(began); a.status != http.StatusForbidden || !strings.Contains(a.text, "expired") || took > validity+10*time.Second {
			return fmt.Errorf("%d %s after %v", a.status, a.text, took)
		}
		return nil
	})
}

// The lock is kept for a repeat where the fence may have been raised.
func TestAWaitThatEndsWithTheTokenSaysWhatIsUnknown(t *testing.T) {
	t.Parallel()
	f := newFakes()
	f.acquire = func(ctx context.Context, _ leasing.Request) (leasing.Lease, error) {
		<-ctx.Done()
		return leasing.Lease{}, errors.Join(ctx.Err(), fence.ErrUnknown)
	}
	testenv.Paced(t, 500*time.Millisecond, func(validity time.Duration) error {
		s := newServer(t, f, func(c *api.Config) { c.Principals = expiring(t, validity, access.Acquire) })
		a := request(t, s, "POST", "/v1/leases", `{"resource":"orders/1","wait":"60s"}`, "Authorization", "Bearer jwt.of.me", wire.IdempotencyKey, aKey)
		if a.status != http.StatusForbidden || a.str("code") != wire.CodeDenied || !strings.HasPrefix(a.str("hint"), "Whether the lease was acquired is unknown") {
			return fmt.Errorf("%d %s", a.status, a.text)
		}
		return nil
	})
}

// If a token cannot be verified, nothing is done, and the client does not get the answer for a wrong token.
func TestATokenThatCannotBeVerifiedIsAnOutage(t *testing.T) {
	t.Parallel()
	s := newServer(t, newFakes(), func(c *api.Config) { c.Principals = shortly(t, access.Inspect) })
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
	feed := activity.New(activity.Config{})
	defer feed.Close()
	me := access.Definition{Name: "me", Issued: claiming("me"), Rules: []access.Rule{{Resources: "*", Verbs: []access.Verb{access.Inspect}}}}
	testenv.Paced(t, 2*time.Second, func(validity time.Duration) error {
		all, err := access.New([]access.Definition{me}, access.VerifiedBy(once(time.Now().Add(validity))))
		if err != nil {
			t.Fatal(err)
		}
		s := newServer(t, newFakes(), func(c *api.Config) { c.Principals, c.Events = all, feed })
		srv := httptest.NewServer(s.Handler())
		defer srv.Close()
		b := newBrowser(t, srv.URL)
		if status, text := b.login("jwt.of.me"); status != http.StatusOK {
			return fmt.Errorf("log-in: %d %s", status, text)
		}
		lines, status := b.stream(t.Context())
		if status != http.StatusOK {
			return fmt.Errorf("a stream: %d", status)
		}
		began := time.Now()
		for range lines { // until it ends
		}
		if took := time.Since(began); took > validity+5*time.Second {
			return fmt.Errorf("the stream ended after %v", took)
		}
		if status, text := b.do("/", nil); status != http.StatusUnauthorized || !strings.Contains(text, `name="token"`) {
			return fmt.Errorf("behind the end: %d %s", status, text)
		}
		return nil
	})
}

// A waiter whose token is no longer trusted gets no lease, though its principal is the same.
func TestAWaitEndsWithTheTrustInItsToken(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"behind the change": false, "while it changes": true} {
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
		a := request(t, s, "POST", "/v1/leases", `{"resource":"orders/1","wait":"60s"}`, "Authorization", "Bearer jwt.of.me")
		if a.status != http.StatusForbidden || a.str("code") != wire.CodeDenied {
			t.Errorf("%s: %d %s", name, a.status, a.text)
		}
		if released := len(f.released) == 1; released != late {
			t.Errorf("%s: released: %t", name, released)
		}
	}
}
