package lock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// setBack does to a node's data what it does to set its clock back: everything expires later.
func setBack(n *memredis.Node, by time.Duration) {
	m := n.Mini()
	for _, key := range m.Keys() {
		if ttl := m.TTL(key); ttl > 0 {
			m.SetTTL(key, ttl+by)
		}
	}
}

// wholeQuarantine fails unless f takes a quarantine, and the time to notice that it is over.
func wholeQuarantine(t *testing.T, f func() error) {
	t.Helper()
	begun := time.Now()
	must(t, f())
	if took := time.Since(begun); took < lock.DefaultMaxTTL || took > lock.DefaultMaxTTL+5*time.Second {
		t.Errorf("admitted after %v; want a whole quarantine", took)
	}
}

// A clock that was set back by hours does not extend a quarantine by hours.
func TestAQuarantineEndsThoughTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		cfg.Epochs = &epochs{}
		l := started(t, cfg)
		before := token(t, acquire(t, l, "r"))
		must(t, nodes[0].Client(t).FlushAll(t.Context()).Err())
		begun, err := l.BeginAdmission(t.Context(), "node-1")
		must(t, err)
		time.Sleep(10 * time.Second)
		setBack(nodes[0], 5*time.Hour)
		if err := l.EndAdmission(t.Context(), begun); !errors.Is(err, lock.ErrQuarantined) {
			t.Fatalf("admit: %v", err)
		}
		wholeQuarantine(t, func() error { return admin.Of(locker(t, cfg)).Admit(t.Context(), "node-1") })
		if after := token(t, acquire(t, l, "r")); after <= before {
			t.Errorf("token %d after %d", after, before)
		}
	})
}

// The clock is set back while the process that began the quarantine waits for its end.
func TestAQuarantineBeginsAgainWhenTheClockIsSetBackMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		cfg.Epochs = &epochs{}
		l := started(t, cfg)
		must(t, nodes[0].Client(t).FlushAll(t.Context()).Err())
		admitted := make(chan error, 1)
		go func() { admitted <- admin.Of(l).Admit(t.Context(), "node-1") }()
		time.Sleep(30 * time.Second)
		setBack(nodes[0], 5*time.Hour)
		wholeQuarantine(t, func() error { return <-admitted })
	})
}

// The same where an operator recovers the group: the clock is set back while Init waits, or before it is repeated.
func TestARecoveryEndsThoughTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	for name, interrupted := range map[string]bool{"during the wait": false, "between two runs": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, nodes := inMemory(t, 1)
				l := started(t, cfg)
				must(t, nodes[0].Client(t).FlushAll(t.Context()).Err())
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				done := make(chan error, 1)
				go func() { done <- admin.Of(l).InitAbove(ctx, 100) }()
				time.Sleep(30 * time.Second)
				if interrupted {
					stop()
					if err := <-done; !errors.Is(err, context.Canceled) {
						t.Fatalf("interrupted: %v", err)
					}
				}
				setBack(nodes[0], 5*time.Hour)
				wholeQuarantine(t, func() error {
					if interrupted {
						return admin.Of(l).InitAbove(t.Context(), 100)
					}
					return <-done
				})
				if got := token(t, acquire(t, l, "r")); got <= 100 {
					t.Errorf("token %d", got)
				}
			})
		})
	}
}

// A clock that jumps forward ends a quarantine on the node. The admitting process also waits by its own clock, as long
// as the answers of a round count.
func TestAQuarantineIsWaitedForThoughTheClockJumpsForward(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		cfg.MaxTTL = time.Second
		started(t, cfg)
		must(t, nodes[0].Client(t).FlushAll(t.Context()).Err())
		// The epoch is raised while the quarantine runs.
		cfg.Epochs = epochStore(func(context.Context, int64) (int64, error) {
			nodes[0].Mini().FastForward(time.Hour)
			return 2, nil
		})
		l := locker(t, cfg)
		lost := time.Now()
		must(t, admin.Of(l).Admit(t.Context(), "node-1"))
		if took := time.Since(lost); took != cfg.MaxTTL {
			t.Errorf("admitted after %v; want %v", took, cfg.MaxTTL)
		}
	})
}

type epochStore func(ctx context.Context, above int64) (int64, error)

func (f epochStore) RaiseEpoch(ctx context.Context, above int64) (int64, error) { return f(ctx, above) }
