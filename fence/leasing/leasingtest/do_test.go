package leasingtest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

const doTTL = 12 * time.Second

// free reports whether the resource has no holder.
func (b *board) free(resource string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, held := b.current(resource)
	return !held
}

// take ends the lease of a resource without its holder's knowledge.
func (b *board) take(resource string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.held, resource)
}

// doing runs work under a lease of "r", in a synctest bubble.
func doing(t *testing.T, renewal time.Duration, work func(context.Context, *board) error, check func(*board, error)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBoard("")
		source := b.open(nil)
		err := leasing.Do(t.Context(), source, leasing.Request{Resource: "r", TTL: doTTL}, renewal, func(ctx context.Context, g fence.Grant) error {
			if g.Resource != "r" || g.Token != 1 {
				t.Errorf("granted %v", g)
			}
			return work(ctx, b)
		})
		check(b, err)
		if err := source.Close(); err != nil {
			t.Error(err)
		}
	})
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(d):
		return nil
	}
}

func TestDoRenewsForAsLongAsTheWorkTakesAndReleases(t *testing.T) {
	t.Parallel()
	failed := errors.New("the work failed")
	doing(t, 0, func(ctx context.Context, b *board) error {
		for range 100 {
			_ = wait(ctx, doTTL/10)
			if ctx.Err() != nil || b.free("r") {
				t.Fatalf("the lease is over: %v", context.Cause(ctx))
			}
		}
		return failed
	}, func(b *board, err error) {
		if !errors.Is(err, failed) || errors.Is(err, leasing.ErrLost) || !b.free("r") {
			t.Errorf("%v; free: %v", err, b.free("r"))
		}
	})
}

func TestDoReleasesWhereTheWorkPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBoard("")
		defer func() {
			if why := recover(); why != "broken" || !b.free("r") {
				t.Errorf("panic %v; free: %v", why, b.free("r"))
			}
		}()
		_ = leasing.Do(t.Context(), b.open(nil), leasing.Request{Resource: "r", TTL: doTTL}, 0, func(context.Context, fence.Grant) error { panic("broken") })
	})
}

func TestDoEndsTheWorksContextWithTheLease(t *testing.T) {
	t.Parallel()
	doing(t, 0, func(ctx context.Context, b *board) error {
		b.take("r")
		_ = wait(ctx, 10*doTTL)
		if !errors.Is(context.Cause(ctx), leasing.ErrLost) {
			t.Errorf("the context's cause: %v", context.Cause(ctx))
		}
		return nil
	}, func(_ *board, err error) {
		if !errors.Is(err, leasing.ErrLost) {
			t.Errorf("work under a lost lease: %v", err)
		}
	})
}

func TestDoRenewsNoLongerThanAllowed(t *testing.T) {
	t.Parallel()
	doing(t, 3*doTTL, func(ctx context.Context, _ *board) error {
		begun := time.Now()
		_ = wait(ctx, 10*doTTL)
		if took := time.Since(begun); took < 3*doTTL || took > 5*doTTL {
			t.Errorf("the lease lived for %v", took)
		}
		if why := context.Cause(ctx); !errors.Is(why, leasing.ErrLost) || !errors.Is(why, leasing.ErrCapped) {
			t.Errorf("the context's cause: %v", why)
		}
		return nil
	}, func(_ *board, err error) {
		if !errors.Is(err, leasing.ErrLost) {
			t.Errorf("%v", err)
		}
	})
}

func TestDoReleasesAlsoWhereItsContextHasEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBoard("")
		stop := errors.New("asked to stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		err := leasing.Do(ctx, b.open(nil), leasing.Request{Resource: "r", TTL: doTTL}, 0, func(ctx context.Context, _ fence.Grant) error {
			cancel(stop)
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, stop) || errors.Is(err, leasing.ErrLost) || !b.free("r") {
			t.Errorf("%v; free: %v", err, b.free("r"))
		}
	})
}

func TestDoTakesNothingOnABadRequest(t *testing.T) {
	t.Parallel()
	b := newBoard("")
	for name, err := range map[string]error{
		"a negative time":  leasing.Do(t.Context(), b.open(nil), leasing.Request{Resource: "r", TTL: doTTL}, -1, nil),
		"another's seal":   leasing.Do(t.Context(), b.open(nil), leasing.Request{Resource: "r", TTL: doTTL, SealHash: fence.NewSeal().Hash()}, 0, nil),
		"no resource name": leasing.Do(t.Context(), b.open(nil), leasing.Request{TTL: doTTL}, 0, nil),
	} {
		if !errors.Is(err, fence.ErrInvalid) || !b.free("r") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
