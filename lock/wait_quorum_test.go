package lock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// Nodes that are frozen for a while, as in a short partition, delay an acquisition but do not fail it.
func TestAcquireWaitsForAQuorum(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		nodes[0].Freeze()
		nodes[1].Freeze()
		got := waiting(t.Context(), l, "r")
		time.Sleep(20 * time.Second)
		if n := l.Attempts(); n < 10 || n > 40 {
			t.Errorf("%d attempts in 20 s", n)
		}
		nodes[0].Thaw()
		thawed := time.Now()
		next := <-got
		must(t, next.err)
		if took := time.Since(thawed); took > 2*time.Second {
			t.Errorf("acquired %v after a quorum was back", took)
		}
		must(t, next.lease.Release(t.Context()))
	})
}

func TestTheEndOfAWaitForAQuorumSaysWhyItWaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		outlastDials(t)
		cfg, nodes := inMemory(t, 3)
		l := started(t, cfg)
		nodes[0].Stop()
		nodes[1].Stop()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := l.Acquire(ctx, "r")
		missing, ok := errors.AsType[*lock.QuorumError](err)
		if !ok || !errors.Is(err, context.DeadlineExceeded) || !lock.Retryable(err) {
			t.Fatalf("got %v", err)
		}
		down := make(map[string]bool) // in the order of their answers
		for _, cause := range missing.Causes {
			down[cause.Node] = errors.Is(cause, memredis.ErrDown)
		}
		if len(missing.Causes) != 2 || !down["node-1"] || !down["node-2"] {
			t.Errorf("the causes: %v", missing.Causes)
		}
		if n := l.Attempts(); n < 3 {
			t.Errorf("%d attempts", n)
		}
	})
}

// An error that only an operator can repair is returned at once, whatever time is left.
func TestAcquireDoesNotWaitForAPerson(t *testing.T) {
	t.Parallel()
	for name, password := range map[string]string{"a wrong password": "another", "no password": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, 1)
				nodes[0].Mini().RequireAuth("secret")
				cfg.Nodes[0].Password = password
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				begun := time.Now()
				_, err := locker(t, cfg).Acquire(ctx, "r")
				if took := time.Since(begun); !errors.Is(err, lock.ErrNoQuorum) || took != 0 {
					t.Errorf("%v, after %v", err, took)
				}
			})
		})
	}
	t.Run("a user who may not", func(t *testing.T) { // real: rights of a user
		t.Parallel()
		cfg, servers := own(t, 1, redisserver.Config{})
		admin := client(t, servers[0].Addr)
		must(t, admin.ACLSetUser(t.Context(), "lockers", "on", ">secret", "~*", "&*", "+hello", "+select", "+ping").Err())
		cfg.Nodes[0].Username, cfg.Nodes[0].Password = "lockers", "secret"
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := locker(t, cfg).Acquire(ctx, "r")
		if !errors.Is(err, lock.ErrNoQuorum) || ctx.Err() != nil {
			t.Errorf("%v (context: %v)", err, ctx.Err())
		}
	})
}
