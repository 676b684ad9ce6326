package api_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

// /readyz needs no token, so concurrent requests share one run of the checks.
func TestReadinessIsLookedAtOnceAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		s := newServer(t, newFakes(), func(c *api.Config) {
			c.Checks = []api.Check{{Part: "postgresql", Run: func(context.Context) error {
				runs++
				time.Sleep(time.Second)
				return nil
			}}}
		})
		var asked sync.WaitGroup
		for range 50 {
			asked.Go(func() {
				if a := request(t, s, "GET", "/readyz", ""); a.status != http.StatusOK {
					t.Errorf("%d %s", a.status, a.text)
				}
			})
		}
		asked.Wait()
		if runs != 1 {
			t.Errorf("%d looks for requests at the same time", runs)
		}
		if request(t, s, "GET", "/readyz", ""); runs != 2 {
			t.Errorf("%d looks after a later request", runs)
		}
	})
}

// Each check may wait for a server that does not answer.
func TestChecksRunAtTheSameTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := func(context.Context) error { time.Sleep(2 * time.Second); return nil }
		s := newServer(t, newFakes(), func(c *api.Config) {
			c.Checks = []api.Check{{Part: "postgresql", Run: slow}, {Part: "redis", Run: slow}}
		})
		after(t, 2*time.Second, func() {
			if a := request(t, s, "GET", "/readyz", ""); a.status != http.StatusOK {
				t.Errorf("%d %s", a.status, a.text)
			}
		})
	})
}

// Leases are granted without what is missing of a part. A port whose check it is can't serve.
func TestADegradedPartServesLeasesOnly(t *testing.T) {
	t.Parallel()
	s := newServer(t, newFakes(), func(c *api.Config) {
		c.Surfaces = []string{wire.SurfaceSQL}
		c.Checks = []api.Check{{Part: "redis", Run: func(context.Context) error {
			return &api.DegradedError{What: "1 of 3 is away", Cause: errors.New("dial 10.0.0.1: refused")}
		}}}
	})
	leases := request(t, s, "GET", "/readyz", "")
	if degraded, _ := leases.body["degraded"].(map[string]any); leases.status != http.StatusOK || degraded["redis"] != "1 of 3 is away" || strings.Contains(leases.text, "10.0.0.1") {
		t.Errorf("leases: %d %s", leases.status, leases.text)
	}
	if a := request(t, s, "GET", "/readyz?for=sql", ""); a.status != http.StatusServiceUnavailable || a.str("part") != "redis" || strings.Contains(a.text, "10.0.0.1") {
		t.Errorf("SQL: %d %s", a.status, a.text)
	}
}

func TestAPartThatDoesNotAnswerIsNotReadyAfterThreeSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, newFakes(), func(c *api.Config) {
			c.Checks = []api.Check{{Part: "redis", Run: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}}
		})
		after(t, 3*time.Second, func() {
			if a := request(t, s, "GET", "/readyz", ""); a.status != http.StatusServiceUnavailable || a.str("part") != "redis" {
				t.Errorf("%d %s", a.status, a.text)
			}
		})
	})
}
