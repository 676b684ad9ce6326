package lock_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/testenv"
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
	cfg := shared(t, 1)
	fences := &ender{}
	cfg.Armer = fences
	l := started(t, cfg)
	o := lock.NewOwner()
	outer, inner := acquire(t, l, "r", lock.WithOwner(o)), acquire(t, l, "r", lock.WithOwner(o))
	grant, err := outer.Grant()
	if err != nil {
		t.Fatal(err)
	}
	release(t, inner)
	if n := len(fences.ended()); n != 0 {
		t.Fatalf("%d grants ended while a handle is left", n)
	}
	release(t, outer)
	release(t, outer)
	all := fences.ended()
	if len(all) != 1 || all[0].Resource != "r" || all[0].Token != grant.Token || !bytes.Equal(all[0].SealHash, grant.Seal.Hash()) {
		t.Errorf("ended %+v for %v", all, grant)
	}
}

func TestAnAsynchronousReleaseEndsTheGrantFirst(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 1)
	asked, gate := make(chan struct{}), make(chan struct{})
	tell := sync.OnceFunc(func() { close(asked) })
	cfg.Armer = &ender{end: func(context.Context, fence.Ending) error { tell(); <-gate; return nil }}
	l := started(t, cfg)
	acquire(t, l, "r").ReleaseAsync()
	select {
	case <-asked:
	case <-time.After(20 * time.Second):
		t.Fatal("the fence was not asked")
	}
	if _, err := tryAcquire(t, l, "r"); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("before the grant has ended: %v", err)
	}
	close(gate)
	free(t, l, "r")
}

// A release has a time limit for the fence, whatever the caller's context, and logs that the grant was not ended.
func TestAReleaseGivesTheFenceHalfASecond(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 1)
	var log bytes.Buffer
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	var left time.Duration
	cfg.Armer = &ender{end: func(ctx context.Context, _ fence.Ending) error {
		if deadline, ok := ctx.Deadline(); ok {
			left = time.Until(deadline)
		}
		<-ctx.Done()
		return ctx.Err()
	}}
	l := started(t, cfg)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	testenv.Paced(t, 500*time.Millisecond, func(time.Duration) error {
		left = 0
		if err := acquire(t, l, "r").Release(over); err != nil {
			t.Error(err)
		}
		if left > 500*time.Millisecond {
			t.Errorf("the fence had %v", left)
		}
		if left <= 0 {
			return errors.New("the fence had no time, or was asked late")
		}
		return nil
	})
	if said := log.String(); !strings.Contains(said, "stays current until the next acquisition") || !strings.Contains(said, "resource=r") {
		t.Errorf("logged %q", said)
	}
	free(t, l, "r")
}

// A superseded grant is over, so nothing is logged. Without a token there is no grant to end.
func TestWhatNeedsNoEndIsSilent(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 1)
	var log bytes.Buffer
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	fences := &ender{end: func(_ context.Context, e fence.Ending) error {
		return &fence.StaleError{Resource: e.Resource, Presented: e.Token, Recorded: e.Token + 1}
	}}
	cfg.Armer = fences
	l := started(t, cfg)
	release(t, acquire(t, l, "r"))
	if strings.Contains(log.String(), "resource=r") {
		t.Errorf("logged %q", log.String())
	}
	lease := acquire(t, l, "r")
	if err := l.Release(t.Context(), leasing.Ref{Resource: "r", Owner: lease.Ref().Owner}); err != nil {
		t.Error(err)
	}
	if n := len(fences.ended()); n != 1 {
		t.Errorf("%d ends", n)
	}
}
