package lock_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock"
)

// ender is a fence in memory that ends grants.
type ender struct {
	register

	end func(ctx context.Context, e fence.Ending) error

	mu   sync.Mutex
	ends []fence.Ending
}

func (r *ender) End(ctx context.Context, e fence.Ending) error {
	r.mu.Lock()
	r.ends = append(r.ends, e)
	r.mu.Unlock()
	if r.end == nil {
		return nil
	}
	return r.end(ctx, e)
}

func (r *ender) ended() []fence.Ending {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]fence.Ending(nil), r.ends...)
}

func TestTheLastHandleEndsTheGrant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 1)
		fences := &ender{}
		cfg.Armer = fences
		l := started(t, cfg)
		o := lock.NewOwner()
		outer, inner := leased(t, l, "r", lock.WithOwner(o)), leased(t, l, "r", lock.WithOwner(o))
		grant, err := outer.Grant()
		must(t, err)
		must(t, inner.Release(t.Context()))
		if n := len(fences.ended()); n != 0 {
			t.Fatalf("%d grants ended while a handle is left", n)
		}
		must(t, outer.Release(t.Context()))
		must(t, outer.Release(t.Context()))
		all := fences.ended()
		if len(all) != 1 || all[0].Resource != "r" || all[0].Token != grant.Token || !bytes.Equal(all[0].SealHash, grant.Seal.Hash()) {
			t.Errorf("ended %+v for %v", all, grant)
		}
	})
}

func TestAnAsynchronousReleaseEndsTheGrantFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 1)
		gate := make(chan struct{})
		fences := &ender{end: func(context.Context, fence.Ending) error { <-gate; return nil }}
		cfg.Armer = fences
		l := started(t, cfg)
		leased(t, l, "r").ReleaseAsync()
		synctest.Wait()
		if n := len(fences.ended()); n != 1 {
			t.Errorf("the fence was asked %d times", n)
		}
		if _, err := l.TryAcquire(t.Context(), "r"); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("before the grant has ended: %v", err)
		}
		close(gate)
		unlocked(t, l, "r")
	})
}

// A release has a time limit for the fence, whatever the caller's context, and logs that the grant was not ended.
func TestAReleaseGivesTheFenceHalfASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 1)
		var log bytes.Buffer
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		cfg.Armer = &ender{end: func(ctx context.Context, _ fence.Ending) error {
			<-ctx.Done()
			return ctx.Err()
		}}
		l := started(t, cfg)
		over, cancel := context.WithCancel(t.Context())
		cancel()
		lease := leased(t, l, "r")
		begun := time.Now()
		must(t, lease.Release(over))
		if took := time.Since(begun); took != 500*time.Millisecond {
			t.Errorf("the release took %v", took)
		}
		if said := log.String(); !strings.Contains(said, "stays current until the next acquisition") || !strings.Contains(said, "resource=r") {
			t.Errorf("logged %q", said)
		}
		unlocked(t, l, "r")
	})
}

// A superseded grant is over, so nothing is logged. Without a token there is no grant to end.
func TestWhatNeedsNoEndIsSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 1)
		var log bytes.Buffer
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		fences := &ender{end: func(_ context.Context, e fence.Ending) error {
			return &fence.StaleError{Resource: e.Resource, Presented: e.Token, Recorded: e.Token + 1}
		}}
		cfg.Armer = fences
		l := started(t, cfg)
		must(t, leased(t, l, "r").Release(t.Context()))
		if strings.Contains(log.String(), "resource=r") {
			t.Errorf("logged %q", log.String())
		}
		lease := leased(t, l, "r")
		must(t, l.Release(t.Context(), leasing.Ref{Resource: "r", Owner: lease.Ref().Owner}))
		if n := len(fences.ended()); n != 1 {
			t.Errorf("%d ends", n)
		}
	})
}
