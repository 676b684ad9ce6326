//go:build linux

package lock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/internal/testenv/clockshim"
	"github.com/fencegate/fencegate/lock"
)

// clocked is a configuration over one real node whose clock the test controls.
func clocked(t *testing.T) (lock.Config, *redisserver.Server, *clockshim.Clock) {
	t.Helper()
	clock := clockshim.New(t)
	server, err := redisserver.Start(t.Context(), redisserver.Config{Env: clock.Env()})
	must(t, err)
	t.Cleanup(func() { check(t, server.Close()) })
	return lock.Config{Nodes: nodesAt(server.Addr), NodeTimeout: patient, Epochs: &epochs{}}, server, clock
}

// Exclusion depends on clocks; tokens do not. The test shows this documented limit, and that the jumps of TestTorture
// are real.
func TestAClockThatJumpsForwardEndsLocksEarlyAndTokensStillRise(t *testing.T) {
	t.Parallel()
	cfg, _, clock := clocked(t)
	l, other := started(t, cfg), locker(t, cfg)
	first := acquire(t, l, "r", lock.WithTTL(time.Minute))
	if _, err := tryAcquire(t, other, "r"); !errors.Is(err, lock.ErrHeld) {
		t.Fatalf("before the jump: %v", err)
	}
	must(t, clock.Set(2*time.Minute))
	second := acquire(t, other, "r", lock.WithTTL(time.Minute))
	if a, b := token(t, first), token(t, second); b <= a {
		t.Errorf("token %d after %d", b, a)
	}
	if err := first.Extend(t.Context(), time.Minute); !errors.Is(err, lock.ErrLost) {
		t.Errorf("extending the first: %v", err)
	}
}

// A clock that was set back by hours does not extend a quarantine by hours.
func TestAQuarantineEndsThoughTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	testenv.Paced(t, 300*time.Millisecond, func(quarantine time.Duration) error {
		cfg, server, clock := clocked(t)
		cfg.MaxTTL = quarantine
		must(t, clock.Set(5*time.Hour))
		l := started(t, cfg)
		before := token(t, acquire(t, l, "r"))
		must(t, client(t, server.Addr).FlushAll(t.Context()).Err())
		begun, err := admitBegin(t, l, "node-1")
		must(t, err)
		must(t, clock.Set(0))
		switch err := admitEnd(t, l, begun); {
		case err == nil:
			return errors.New("the quarantine was over when the clock was set back")
		case !errors.Is(err, lock.ErrQuarantined):
			t.Fatalf("admit: %v", err)
		}
		again := time.Now()
		readmit(t, locker(t, cfg), "node-1")
		if took := time.Since(again); took < cfg.MaxTTL {
			t.Errorf("admitted after %v, without a whole quarantine", took)
		}
		if after := token(t, acquire(t, l, "r")); after <= before {
			t.Errorf("token %d after %d", after, before)
		}
		return nil
	})
}

// The same where an operator recovers the group: the clock is set back while Recover waits, or before it is repeated.
func TestARecoveryEndsThoughTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	for name, interrupted := range map[string]bool{"during the wait": false, "between two runs": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, server, clock := clocked(t)
			cfg.Epochs, cfg.KeyPrefix, cfg.MaxTTL = nil, lock.DefaultKeyPrefix, 5*time.Second
			must(t, clock.Set(5*time.Hour))
			l := started(t, cfg)
			must(t, client(t, server.Addr).FlushAll(t.Context()).Err())
			ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
			defer cancel()
			first, stop := context.WithCancel(ctx)
			defer stop()
			done := make(chan error, 1)
			go func() { done <- l.Init(first, lock.Above(100)) }()
			eventually(t, 20*time.Second, "the quarantine has begun", func() bool {
				return client(t, server.Addr).HExists(t.Context(), cfg.KeyPrefix+":h", "@pending").Val()
			})
			if interrupted {
				stop()
				if err := <-done; !errors.Is(err, context.Canceled) {
					t.Fatalf("interrupted: %v", err)
				}
			}
			must(t, clock.Set(0))
			back := time.Now()
			if interrupted {
				recovered(t, l, 100)
			} else if err := <-done; err != nil {
				t.Fatal(err)
			}
			if took := time.Since(back); took < cfg.MaxTTL {
				t.Errorf("admitted after %v, without a whole quarantine", took)
			}
		})
	}
}

// A clock that jumps forward ends a quarantine on the node, but the admitting process also waits by its own clock.
func TestAQuarantineIsWaitedForThoughTheClockJumpsForward(t *testing.T) {
	t.Parallel()
	cfg, server, clock := clocked(t)
	cfg.MaxTTL = 600 * time.Millisecond
	started(t, cfg)
	must(t, client(t, server.Addr).FlushAll(t.Context()).Err())
	// The epoch is raised while the quarantine runs.
	cfg.Epochs = epochStore(func(context.Context, int64) (int64, error) { return 2, clock.Set(time.Hour) })
	l := locker(t, cfg)
	lost := time.Now()
	readmit(t, l, "node-1")
	if took := time.Since(lost); took < cfg.MaxTTL {
		t.Errorf("admitted after %v, without a whole quarantine", took)
	}
}

type epochStore func(ctx context.Context, above int64) (int64, error)

func (f epochStore) RaiseEpoch(ctx context.Context, above int64) (int64, error) { return f(ctx, above) }
