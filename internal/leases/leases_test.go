package leases

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// The answer came when what it gave was over, by the holder's clock.
func TestAnExtensionThatTookItsTTLIsNone(t *testing.T) {
	t.Parallel()
	given := good(ttl)
	for took, left := range map[time.Duration]time.Duration{time.Second: given - time.Second, given - 1: 1, given: 0} {
		synctest.Test(t, func(t *testing.T) {
			s := newService()
			source := s.process(t, nil)
			lease, err := leasing.One(source.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: 2 * ttl}))
			if err != nil {
				t.Fatal(err)
			}
			s.extend = func(leasing.Ref) error { time.Sleep(took); return nil }
			got, err := source.Extend(t.Context(), lease.Ref(), ttl)
			if left > 0 && got.Left() != left || errors.Is(err, leasing.ErrLost) != (left == 0) {
				t.Errorf("after %v: good for %v, %v; want %v", took, got.Left(), err, left)
			}
		})
	}
}

// hanging ends no grant.
type hanging struct{ anyFence }

func (hanging) End(ctx context.Context, _ fence.Ending) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestAReleaseWaitsForTheFenceForABoundedTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService()
		source := s.process(t, hanging{})
		lease := take(t, source, "r")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := source.Release(ended, lease.Ref()); err != nil || time.Since(s.begun) != endTimeout || s.lives("r") {
			t.Errorf("%v after %v; it lives: %t", err, time.Since(s.begun), s.lives("r"))
		}
	})
}
