package lock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

func TestDoHoldsTheLeaseWhileTheWorkRuns(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	l := started(t, cfg)
	failed := errors.New("the work failed")
	err := l.Do(t.Context(), "r", func(ctx context.Context, g fence.Grant) error {
		if g.Resource != "r" || g.Token == 0 || ctx.Err() != nil {
			t.Errorf("granted %v, %v", g, ctx.Err())
		}
		if _, err := tryAcquire(t, l, "r"); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("another: %v", err)
		}
		return failed
	}, lock.WithTTL(time.Minute))
	if !errors.Is(err, failed) || errors.Is(err, lock.ErrLost) {
		t.Error(err)
	}
	free(t, l, "r")
}

func TestDoReleasesWhereTheWorkPanics(t *testing.T) {
	t.Parallel()
	l := started(t, shared(t, 3))
	func() {
		defer func() {
			if why := recover(); why != "broken" {
				t.Errorf("panic: %v", why)
			}
		}()
		_ = l.Do(t.Context(), "r", func(context.Context, fence.Grant) error { panic("broken") }, lock.WithTTL(time.Minute))
	}()
	free(t, l, "r")
}

func TestDoEndsTheWorksContextWithTheLease(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	l := started(t, cfg)
	err := l.Do(t.Context(), "r", func(ctx context.Context, _ fence.Grant) error {
		must(t, client(t, servers[0].Addr).FlushAll(t.Context()).Err())
		<-ctx.Done() // the renewal finds no lock
		if !errors.Is(context.Cause(ctx), lock.ErrLost) {
			t.Errorf("the context's cause: %v", context.Cause(ctx))
		}
		return nil
	}, lock.WithTTL(2*time.Second))
	if !errors.Is(err, lock.ErrLost) {
		t.Errorf("work under a lost lease: %v", err)
	}
}
