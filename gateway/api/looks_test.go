package api_test

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fencegate/fencegate/gateway/api"
)

// /readyz asks for no token: however many ask, the parts are looked at once at a time.
func TestReadinessIsLookedAtOnceAtATime(t *testing.T) {
	t.Parallel()
	var running, most atomic.Int64
	entered, gate := make(chan struct{}, 100), make(chan struct{})
	s := newServer(t, newFakes(), func(c *api.Config) {
		c.Checks = []api.Check{{Part: "postgresql", Run: func(context.Context) error {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			entered <- struct{}{}
			<-gate
			return nil
		}}}
	})
	var asking, asked sync.WaitGroup
	for range 50 {
		asking.Add(1)
		asked.Go(func() {
			asking.Done()
			if a := request(t, s, "GET", "/readyz", ""); a.status != http.StatusOK {
				t.Errorf("%d %s", a.status, a.text)
			}
		})
	}
	asking.Wait()
	<-entered
	close(gate)
	asked.Wait()
	if most.Load() != 1 {
		t.Errorf("%d looks at the same time", most.Load())
	}
}
