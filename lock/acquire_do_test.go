package lock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/lock"
)

func TestDoHoldsTheLeaseWhileTheWorkRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		l := started(t, cfg)
		failed := errors.New("the work failed")
		err := l.Do(t.Context(), "r", func(ctx context.Context, g fence.Grant) error {
			time.Sleep(10 * lock.DefaultTTL)
			if g.Resource != "r" || g.Token == 0 || ctx.Err() != nil {
				t.Errorf("granted %v, %v", g, ctx.Err())
			}
			if _, err := l.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrHeld) {
				t.Errorf("another: %v", err)
			}
			return failed
		})
		if !errors.Is(err, failed) || errors.Is(err, lock.ErrLost) {
			t.Error(err)
		}
		unlocked(t, l, "r")
	})
}

func TestDoEndsTheWorksContextWithTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, nodes := inMemory(t, 1)
		l := started(t, cfg)
		err := l.Do(t.Context(), "r", func(ctx context.Context, _ fence.Grant) error {
			lost := time.Now()
			must(t, nodes[0].Client(t).Del(t.Context(), lock.DefaultKeyPrefix+":lock:r").Err())
			<-ctx.Done() // the first renewal finds no lock
			if cause, took := context.Cause(ctx), time.Since(lost); !errors.Is(cause, lock.ErrLost) || took > lock.DefaultTTL/3 {
				t.Errorf("the context's cause after %v: %v", took, cause)
			}
			return nil
		})
		if !errors.Is(err, lock.ErrLost) {
			t.Errorf("work under a lost lease: %v", err)
		}
	})
}
