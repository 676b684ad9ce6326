package api_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

// hanging gives leases, and does not answer when one is released.
type hanging struct {
	leases

	gaveUp atomic.Int32 // calls
}

func (h *hanging) Release(ctx context.Context, _ leasing.Ref) error {
	<-ctx.Done()
	h.gaveUp.Add(1)
	return ctx.Err()
}

func TestAReleaseWithoutAnAnswerIsGivenUpAfterFiveSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &hanging{leases: leases{newFakes()}}
		s := newServer(t, h.fakes, func(c *api.Config) { c.Leases = h })
		body := fmt.Sprintf(`{"handle":%q}`, aHandle(t, s))
		const bound = 5 * time.Second
		after(t, bound, func() {
			a := request(t, s, "POST", "/v1/leases/release", body)
			if a.status != http.StatusServiceUnavailable || a.str("part") != wire.PartRedis || a.str("hint") != "The grant may have ended already. Release again; otherwise the lock ends at its TTL." {
				t.Errorf("%d %s", a.status, a.text)
			}
		})
		// A client that leaves does not take its release along.
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		if resp, err := post(ctx, transportTo(t, s), "http://localhost/v1/leases/release", body); err == nil {
			_ = resp.Body.Close()
			t.Errorf("the client was answered: %d", resp.StatusCode)
		}
		synctest.Wait()
		if h.gaveUp.Load() != 1 {
			t.Errorf("the release ended with its client")
		}
		time.Sleep(bound - time.Second)
		synctest.Wait()
		if h.gaveUp.Load() != 2 {
			t.Errorf("the release goes on after %v", bound)
		}
	})
}

// stubborn is a PostgreSQL that hangs when a resource is revoked.
type stubborn struct {
	*fakes

	err error // joined with the context's
}

func (s stubborn) Revoke(ctx context.Context, _, _ string, _ fence.Token) (fence.Token, error) {
	<-ctx.Done()
	return 0, fmt.Errorf("%w: %w", ctx.Err(), s.err)
}

func TestARevocationWithoutAnAnswerIsGivenUpAfterFifteenSeconds(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    error
		status int
		code   string
	}{
		"not sent": {errors.New("no connection"), http.StatusServiceUnavailable, wire.CodeUnavailable},
		"sent":     {fence.ErrUnknown, http.StatusBadGateway, wire.CodeUnknown},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakes()
			s := newServer(t, f, func(cfg *api.Config) { cfg.Fences = stubborn{f, c.err} })
			after(t, 15*time.Second, func() {
				if a := request(t, s, "POST", "/v1/resources/a/revoke", `{}`); a.status != c.status || a.str("code") != c.code {
					t.Errorf("%s: %d %s", name, a.status, a.text)
				}
			})
		})
	}
}

// A lost lease is lost, also if PostgreSQL does not say why.
func TestWhyALeaseIsLostIsAskedForOneSecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFakes()
		handle := aHandle(t, newServer(t, f))
		f.err = leasing.ErrLost
		s := newServer(t, f, func(c *api.Config) { c.Fences = silent{f} })
		after(t, time.Second, func() {
			if a := renew(t, s, handle); a.status != http.StatusGone || a.str("code") != wire.CodeLeaseLost || a.str("detail") != "the lease is lost" {
				t.Errorf("%d %s", a.status, a.text)
			}
		})
	})
}
