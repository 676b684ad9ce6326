package api_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/api"
)

// /readyz needs no token, so concurrent requests share one run of the checks.
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

// A part's two queries run at the same time: each may wait for a node that does not answer.
func TestAPartIsAskedForBothAtTheSameTime(t *testing.T) {
	t.Parallel()
	running, asked := make(chan struct{}), make(chan struct{})
	wait := func(other <-chan struct{}) error {
		select {
		case <-other:
			return nil
		case <-time.After(20 * time.Second):
			return errors.New("the other was not asked meanwhile")
		}
	}
	s := newServer(t, newFakes(), func(c *api.Config) {
		c.Checks = []api.Check{{
			Part: "redis",
			Run: func(context.Context) error {
				close(running)
				return wait(asked)
			},
			Degraded: func(context.Context) string {
				close(asked)
				if err := wait(running); err != nil {
					t.Error(err)
				}
				return "1 of 3"
			},
		}}
	})
	if a := request(t, s, "GET", "/readyz", ""); a.status != http.StatusOK || !strings.Contains(a.text, "1 of 3") {
		t.Errorf("%d %s", a.status, a.text)
	}
}
