package api_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/api"
)

// lasting is a source with one lease, which ends at its time. It needs two seconds to say when.
type lasting struct {
	leases

	end time.Time
}

const answerOfLasting = 2 * time.Second

func (l *lasting) Acquire(ctx context.Context, wait leasing.Wait, all ...leasing.Request) ([]leasing.Lease, error) {
	l.end = time.Now().Add(all[0].TTL)
	return l.leases.Acquire(ctx, wait, all...)
}

func (l *lasting) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (clock.Instant, error) {
	l.end = time.Now().Add(ttl)
	return l.leases.Extend(ctx, ref, ttl)
}

func (l *lasting) Inspect(context.Context, ...string) ([]leasing.Inspection, error) {
	left := time.Until(l.end)
	time.Sleep(answerOfLasting)
	return []leasing.Inspection{{Locked: left > 0, TTL: left}}, l.lockErr
}

// issued asks for credentials and returns when they expire.
func issued(t *testing.T, s *api.Server, handle string, refreshing bool, headers ...string) time.Time {
	t.Helper()
	a := request(t, s, "POST", "/v1/leases/credentials", fmt.Sprintf(`{"handle":%q,"refreshing":%t}`, handle, refreshing), headers...)
	at, err := time.Parse(time.RFC3339Nano, a.str("expires_at"))
	if err != nil || a.status != http.StatusOK || a.str("access_key_id") != "ASIA" {
		t.Fatalf("%d %s", a.status, a.text)
	}
	if left := float64(time.Until(at).Milliseconds()); a.body["valid_ms"] != left {
		t.Errorf("valid_ms %v of %v", a.body["valid_ms"], left)
	}
	return at
}

// Refreshing credentials end with the lease as it stands when they are asked for, so after a renewal they reach
// further. Static ones outlive it: the S3 port asks whether it is held.
func TestRefreshingCredentialsEndWithTheLeaseAndStaticOnesWithItsLongestLife(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		maxLease, static time.Duration
	}{"a cap": {2 * time.Hour, 2 * time.Hour}, "no cap": {api.Unlimited, 0}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakes()
			l := &lasting{leases: leases{f}}
			s := newServer(t, f, func(cfg *api.Config) { cfg.Leases, cfg.MaxLease = l, c.maxLease })
			acquired := time.Now()
			handle := aHandle(t, s)
			for range 3 {
				if at := issued(t, s, handle, true); !at.Equal(l.end) || f.terms.WhileHeld || f.terms.EndHeld {
					t.Errorf("%s: refreshing ones end %v after the lease, with the terms %+v", name, at.Sub(l.end), f.terms)
				}
				time.Sleep(20 * time.Second)
				if a := renew(t, s, handle); a.status != http.StatusOK {
					t.Fatalf("%d %s", a.status, a.text)
				}
			}
			asked := time.Now()
			at := issued(t, s, handle, false)
			want := asked.Add(api.MaxCredentials)
			if c.static > 0 {
				want = acquired.Add(c.static)
			}
			if !at.Equal(want) || !f.terms.WhileHeld || f.terms.EndHeld {
				t.Errorf("%s: static ones end at %v, want %v; with the terms %+v", name, at, want, f.terms)
			}

			time.Sleep(time.Until(l.end))
			for _, refreshing := range []bool{true, false} {
				a := request(t, s, "POST", "/v1/leases/credentials", fmt.Sprintf(`{"handle":%q,"refreshing":%t}`, handle, refreshing))
				if a.status != http.StatusGone || a.str("code") != "lease_lost" {
					t.Errorf("%s: after the lease, refreshing %t: %d %s", name, refreshing, a.status, a.text)
				}
			}
		})
	}
}

// A lease may last longer than it may be renewed, or have no end.
func TestRefreshingCredentialsEndAtTheLeasesCap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakes()
		l := &lasting{leases: leases{f}}
		s := newServer(t, f, func(c *api.Config) { c.Leases, c.MaxLease = l, 20*time.Second })
		acquired := time.Now()
		handle := aHandle(t, s)
		if at := issued(t, s, handle, true); at.Sub(acquired) != 20*time.Second {
			t.Errorf("valid for %v", at.Sub(acquired))
		}
		time.Sleep(time.Until(acquired.Add(20 * time.Second)))
		if a := request(t, s, "POST", "/v1/leases/credentials", fmt.Sprintf(`{"handle":%q}`, handle)); a.status != http.StatusGone {
			t.Errorf("at the cap: %d %s", a.status, a.text)
		}
	})
}

func TestRefreshingCredentialsNeedTheLocksAnswer(t *testing.T) {
	t.Parallel()
	f := newFakes()
	s := newServer(t, f)
	handle := aHandle(t, s)
	f.lockErr = leasing.ErrUnavailable
	a := request(t, s, "POST", "/v1/leases/credentials", fmt.Sprintf(`{"handle":%q,"refreshing":true}`, handle))
	if a.status != http.StatusServiceUnavailable || a.str("part") != "redis" {
		t.Errorf("%d %s", a.status, a.text)
	}
}

// The S3 port can't ask whether a principal's token has expired, so its static credentials read only while the lease is
// held.
func TestStaticCredentialsOfATokenThatExpiresEndWithTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rules := []access.Rule{{Resources: "*", Verbs: []access.Verb{access.Acquire}}}
		all, err := access.New([]access.Definition{
			{Name: "me", Issued: claiming("me"), Rules: rules},
			{Name: "own", Tokens: []access.Digest{access.DigestOf("own")}, Rules: rules},
		}, access.VerifiedBy(provider(time.Hour)))
		if err != nil {
			t.Fatal(err)
		}
		f := newFakes()
		s := newServer(t, f, func(c *api.Config) { c.Principals = all })
		for token, ends := range map[string]bool{"jwt.of.me": true, "own": false} {
			bearer := []string{"Authorization", "Bearer " + token}
			handle := request(t, s, "POST", "/v1/leases", `{"resource":"orders/1001"}`, bearer...).str("handle")
			for _, refreshing := range []bool{true, false} {
				issued(t, s, handle, refreshing, bearer...)
				if f.terms.EndHeld != (ends && !refreshing) || f.terms.WhileHeld == refreshing {
					t.Errorf("%s, refreshing %t: %+v", token, refreshing, f.terms)
				}
			}
		}
	})
}
