package lock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock"
)

// stuckArmer raises the fence, and its process does not run until its time is over.
type stuckArmer struct {
	register
	raised chan struct{}
	answer error // nil: until the deadline of the acquisition, and the fence is raised
}

func (a *stuckArmer) Arm(ctx context.Context, all ...fence.Arming) error {
	if err := a.register.Arm(ctx, all...); err != nil {
		return err
	}
	a.raised <- struct{}{}
	<-ctx.Done()
	return a.answer
}

// A repeat at another gateway recognizes the lease by its seal as soon as the fence is raised, and returns it. The
// first gateway, which was paused, leaves it alone.
func TestALeaseThatARepeatHasReturnedIsNotGivenBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer     error // of the armer
		disconnect bool
		want       error
		all        bool
	}{
		"the TTL ended":                 {want: lock.ErrLost},
		"the TTL of several ended":      {want: lock.ErrLost, all: true},
		"the client disconnected":       {answer: context.Canceled, disconnect: true, want: fence.ErrUnknown},
		"the client of several is gone": {answer: context.Canceled, disconnect: true, want: fence.ErrUnknown, all: true},
		"the outcome is unknown":        {answer: fence.ErrUnknown, want: fence.ErrUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg, _ := inMemory(t, 3)
				other := started(t, cfg)
				armer := &stuckArmer{raised: make(chan struct{}, 1), answer: c.answer}
				cfg.Armer = armer
				first := locker(t, cfg).Source()
				ctx, disconnect := context.WithCancel(t.Context())
				defer disconnect()
				seal := fence.NewSeal()
				all := []leasing.Request{{Resource: "r", TTL: lock.DefaultTTL, SealHash: seal.Hash(), Repeatable: true}}
				if c.all {
					all = append(all, leasing.Request{Resource: "s", TTL: lock.DefaultTTL, SealHash: seal.Hash(), Repeatable: true})
				}
				done := make(chan error, 1)
				go func() { done <- requested(ctx, first, all...) }()
				<-armer.raised
				ref := repeat(t, other, "r")
				if c.disconnect {
					disconnect()
				}
				if err := <-done; !errors.Is(err, c.want) {
					t.Errorf("the first request: %v; want %v", err, c.want)
				}
				must(t, first.Close()) // what it sends arrives before that
				if _, err := other.Extend(t.Context(), ref, time.Minute); err != nil {
					t.Errorf("the lease of the repeat: %v", err)
				}
			})
		})
	}
}

// Several leases come together: while one of their fences is not raised, no repeat returns any of them.
func TestSeveralThatNoRepeatCanHaveAreGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		down := errors.New("database is away")
		cfg.Armer = &register{before: func(a fence.Arming) error {
			if a.Resource == "b" {
				return down
			}
			return nil
		}}
		l := started(t, cfg)
		seal := fence.NewSeal()
		a := leasing.Request{Resource: "a", TTL: time.Minute, SealHash: seal.Hash(), Repeatable: true}
		b := a
		b.Resource = "b"
		if err := requested(t.Context(), l.Source(), a, b); !errors.Is(err, down) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		freed(t, l, "a")
		freed(t, l, "b")
	})
}

// A login takes its lease for one connection: nobody knows its seal, so nobody repeats it.
func TestALeaseThatNobodyRepeatsIsGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		armer := &stuckArmer{raised: make(chan struct{}, 1), answer: context.Canceled}
		cfg.Armer = armer
		l := started(t, cfg)
		ctx, disconnect := context.WithCancel(t.Context())
		defer disconnect()
		done := make(chan error, 1)
		go func() {
			done <- requested(ctx, l.Source(), leasing.Request{Resource: "a", TTL: time.Minute, SealHash: fence.NewSeal().Hash()})
		}()
		<-armer.raised
		disconnect()
		if err := <-done; !errors.Is(err, fence.ErrUnknown) {
			t.Errorf("got %v", err)
		}
		synctest.Wait()
		freed(t, l, "a")
	})
}

func requested(ctx context.Context, s leasing.Source, all ...leasing.Request) error {
	_, err := s.Acquire(ctx, leasing.AtOnce, all...)
	return err
}

// repeat extends the lease of a resource, as a gateway does that finds it.
func repeat(t *testing.T, l *lock.Locker, resource string) leasing.Ref {
	t.Helper()
	ins, err := leasing.One(l.Inspect(t.Context(), resource))
	must(t, err)
	ref := leasing.Ref{Resource: resource, Owner: ins.Owner}
	_, err = l.Extend(t.Context(), ref, time.Minute)
	must(t, err)
	return ref
}
