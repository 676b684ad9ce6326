package api_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/gateway/api"
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

// A part's two queries run at the same time: each may wait for a node that does not answer.
func TestAPartIsAskedForBothAtTheSameTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, newFakes(), func(c *api.Config) {
			c.Checks = []api.Check{{
				Part:     "redis",
				Run:      func(context.Context) error { time.Sleep(2 * time.Second); return nil },
				Degraded: func(context.Context) string { time.Sleep(2 * time.Second); return "1 of 3" },
			}}
		})
		after(t, 2*time.Second, func() {
			if a := request(t, s, "GET", "/readyz", ""); a.status != http.StatusOK || !strings.Contains(a.text, "1 of 3") {
				t.Errorf("%d %s", a.status, a.text)
			}
		})
	})
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
