package jwt

import (
	"context"
	"crypto/rsa"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/fencegate/fencegate/gateway/access"
)

// A night without requests, and a reload behind it: a key that was withdrawn in that time does not count.
func TestAKeyThatWasWithdrawnInAnIdleTimeDoesNotCount(t *testing.T) {
	t.Parallel()
	old, next := rsaKey(t, 2048), rsaKey(t, 2048)
	byOld, byNext := sign(t, "RS256", old, "1", good(nil), nil), sign(t, "RS256", next, "2", good(nil), nil)
	for name, reload := range map[string]bool{"idle": false, "a reload": true} {
		p := provide(t, public("1", old))
		v := verifier(t, p.issuer("RS256"))
		var passed atomic.Int64
		now := func() time.Time { return time.Now().Add(time.Duration(passed.Load())) }
		v.issuers[idp].keys.now = now
		if _, err := v.Verify(t.Context(), byOld); err != nil {
			t.Fatal(err)
		}
		p.keys.Store(&[]jose.JSONWebKey{public("2", next)})
		passed.Store(int64(12 * time.Hour))
		if reload {
			before := v
			v = verifier(t, p.issuer("RS256"))
			v.issuers[idp].keys.now = now
			v.Succeed(before)
		}
		errs := make(chan error, 10)
		for range cap(errs) {
			go func() {
				_, err := v.Verify(t.Context(), byOld)
				errs <- err
			}()
		}
		for range cap(errs) {
			if err := <-errs; !errors.Is(err, access.ErrUnknown) {
				t.Errorf("%s: the withdrawn key: %v", name, err)
			}
		}
		if _, err := v.Verify(t.Context(), byNext); err != nil {
			t.Errorf("%s: the new key: %v", name, err)
		}
		if n := p.asked.Load(); n != 2 {
			t.Errorf("%s: asked %d times", name, n)
		}
	}
}

// A provider that does not answer costs a known key one wait of patience, and in the rest of the outage none.
func TestAnOutageCostsAKnownKeyOneWait(t *testing.T) {
	t.Parallel()
	key := rsaKey(t, 2048)
	for name, reload := range map[string]bool{"idle": false, "a reload": true} {
		synctest.Test(t, func(t *testing.T) { silence(t, name, key, reload) })
	}
}

// silence is an outage behind an idle time, in a bubble of [synctest].
func silence(t *testing.T, name string, key *rsa.PrivateKey, reload bool) {
	t.Helper()
	token := sign(t, "RS256", key, "1", good(nil), nil)
	var passed time.Duration
	var asked int
	silent := false
	replaced := func() *Verifier {
		v := verifier(t, Issuer{URL: idp, Audience: audience, Algorithms: []string{"RS256"}, Keys: "https://idp.test"})
		v.issuers[idp].keys.now = func() time.Time { return time.Now().Add(passed) }
		v.issuers[idp].keys.fetch = func(ctx context.Context) ([]jose.JSONWebKey, error) {
			asked++
			if silent {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return []jose.JSONWebKey{public("1", key)}, nil
		}
		return v
	}
	v := replaced()
	verify := func(when string, want time.Duration) {
		t.Helper()
		began := time.Now()
		if _, err := v.Verify(t.Context(), token); err != nil {
			t.Errorf("%s: %s: %v", name, when, err)
		}
		if took := time.Since(began); took != want {
			t.Errorf("%s: %s: took %v, want %v", name, when, took, want)
		}
	}
	verify("at first", 0)
	silent, passed = true, 12*time.Hour
	if reload {
		before := v
		v = replaced()
		v.Succeed(before)
	}
	verify("in the outage", patience)
	verify("in the pause", 0)
	passed += againAfter
	verify("after the pause", 0)
	answered(v)
	if asked != 3 {
		t.Errorf("%s: asked %d times", name, asked)
	}
	passed += waitAfter
	verify("after another idle time", patience)
	silent, passed = false, passed+waitAfter
	verify("after the outage", 0)
}
