package pglock_test

import (
	"context"
	"errors"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

func TestDoHoldsALeaseOfPostgreSQLWhileTheWorkRuns(t *testing.T) {
	t.Parallel()
	w := setup(t)
	other := w.process(t)
	failed := errors.New("the work failed")
	err := leasing.Do(t.Context(), w.Source, leasing.Request{Resource: "r", TTL: ttl}, 0, func(ctx context.Context, g fence.Grant) error {
		if _, err := other.Acquire(ctx, leasing.AtOnce, leasing.Request{Resource: "r", TTL: ttl}); !errors.Is(err, leasing.ErrHeld) || g.Token == 0 {
			t.Errorf("another: %v; granted %v", err, g)
		}
		return failed
	})
	if !errors.Is(err, failed) {
		t.Error(err)
	}
	lease, err := leasing.One(other.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: ttl}))
	if err != nil {
		t.Fatalf("after the work: %v", err)
	}
	if err := other.Release(t.Context(), lease.Ref()); err != nil {
		t.Error(err)
	}
}
