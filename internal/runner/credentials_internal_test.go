package runner

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/wire"
)

// issuer is a gateway that issues credentials after a while, or answers with a status. Its clock is an hour behind.
type issuer struct {
	takes  time.Duration
	status int
	code   string
	asked  atomic.Int32
}

func (g *issuer) RoundTrip(r *http.Request) (*http.Response, error) {
	g.asked.Add(1)
	select {
	case <-time.After(g.takes):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	body, err := json.Marshal(map[string]any{"access_key_id": "fresh", "expires_at": time.Now().Add(time.Minute - time.Hour), "valid_ms": 60_000, "code": g.code, "status": g.status})
	return &http.Response{StatusCode: g.status, Body: io.NopCloser(strings.NewReader(string(body)))}, err
}

// aging returns a provider for a lease of a minute. Its credentials are valid for that long, and need a refresh.
func aging(t *testing.T, g *issuer, valid time.Duration) *provider {
	t.Helper()
	c, err := client.New(client.Config{URL: "http://gateway.invalid", HTTPClient: &http.Client{Transport: g}})
	if err != nil {
		t.Fatal(err)
	}
	return &provider{
		client: c, ttl: time.Minute, life: t.Context(),
		last: issued{wire.Credentials{AccessKeyID: "cached"}, c.Now().Add(valid)},
	}
}

func TestClientsShareOneRefreshAndDoNotQueueForIt(t *testing.T) {
	t.Parallel()
	const valid, never = 20 * time.Second, time.Hour
	for name, tc := range map[string]struct {
		gateway *issuer
		valid   time.Duration
		want    string // key; "": an error
		after   time.Duration
	}{
		"the gateway answers":                   {&issuer{takes: 400 * time.Millisecond, status: http.StatusOK}, valid, "fresh", 400 * time.Millisecond},
		"the gateway answers, nothing is valid": {&issuer{takes: time.Second, status: http.StatusOK}, -1, "fresh", time.Second},
		"the gateway is silent":                 {&issuer{takes: never}, valid, "cached", refreshPatience},
		"the gateway is silent, nothing valid":  {&issuer{takes: never}, -1, "", fetchTimeout},
		"the gateway is unavailable":            {&issuer{status: http.StatusServiceUnavailable, code: wire.CodeUnavailable}, valid, "cached", 0},
		"the gateway refuses, nothing is valid": {&issuer{status: http.StatusForbidden, code: wire.CodeDenied}, -1, "", 0},
		"the lease is lost":                     {&issuer{status: http.StatusGone, code: wire.CodeLeaseLost}, valid, "cached", 0},
		"the lease was lost long ago":           {&issuer{status: http.StatusGone, code: wire.CodeLeaseLost}, -1, "cached", 0},
		"the lease is superseded":               {&issuer{status: http.StatusPreconditionFailed, code: "ZF001"}, -1, "cached", 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := aging(t, tc.gateway, tc.valid)
			began := time.Now()
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					got, err := p.current(t.Context())
					if took := time.Since(began); got.AccessKeyID != tc.want || (err != nil) != (tc.want == "") || took != tc.after {
						t.Errorf("%s: got %q and %v after %v, want %q after %v", name, got.AccessKeyID, err, took, tc.want, tc.after)
					}
				})
			}
			all.Wait()
			// In no time the first may have its answer before the last asks.
			if n := tc.gateway.asked.Load(); n != 1 && tc.after > 0 {
				t.Errorf("%s: the gateway was asked %d times, want once", name, n)
			}
		})
	}
}

func TestAClientThatLeavesEndsNoRefreshOfOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := aging(t, &issuer{takes: time.Second, status: http.StatusOK}, -1)
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() { _, err := p.current(ctx); left <- err }()
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("it left with %v", err)
		}
		began := time.Now()
		if got, err := p.current(t.Context()); err != nil || got.AccessKeyID != "fresh" || time.Since(began) != time.Second {
			t.Errorf("another got %q and %v after %v, want the result of the same refresh", got.AccessKeyID, err, time.Since(began))
		}
	})
}

// An SDK compares the expiry with this machine's clock, which may be ahead of the gateway's by more than the TTL.
func TestCredentialsExpireByThisMachinesClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &issuer{takes: time.Second, status: http.StatusOK}
		p := aging(t, g, -1)
		sent := time.Now()
		for range 2 {
			w := httptest.NewRecorder()
			p.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/credentials", http.NoBody))
			var got struct{ Expiration time.Time }
			if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || !got.Expiration.Equal(sent.Add(time.Minute)) {
				t.Errorf("%d %s, %v; want an expiry at %v", w.Code, w.Body, err, sent.Add(time.Minute))
			}
			<-time.After(20 * time.Second)
		}
		if n := g.asked.Load(); n != 1 {
			t.Errorf("the gateway was asked %d times, want once", n)
		}
	})
}

// A client whose answer was lost asks again with the last credentials, however long ago its lease ended: the S3 port
// knows whether its request was done. SDKs use no credentials that have expired.
func TestTheLastCredentialsOutlastTheLease(t *testing.T) {
	t.Parallel()
	for _, g := range []*issuer{
		{status: http.StatusPreconditionFailed, code: "ZF001"}, {status: http.StatusGone, code: wire.CodeLeaseLost},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := aging(t, g, 20*time.Second)
			<-time.After(time.Hour)
			for range 3 {
				w := httptest.NewRecorder()
				p.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/credentials", http.NoBody))
				var got struct {
					AccessKeyID string `json:"AccessKeyId"`
					Expiration  time.Time
				}
				err := json.Unmarshal(w.Body.Bytes(), &got)
				if err != nil || w.Code != http.StatusOK || got.AccessKeyID != "cached" || !got.Expiration.Equal(time.Now().Add(lastFor)) {
					t.Errorf("%s: %d %s, %v", g.code, w.Code, w.Body, err)
				}
			}
			if n := g.asked.Load(); n != 1 {
				t.Errorf("%s: the gateway was asked %d times, want once", g.code, n)
			}
		})
	}
}
