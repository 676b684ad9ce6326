package lock_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/fencegate/fencegate/fence"
)

// floored is a fence that refuses tokens not above its floor.
type floored struct {
	anyFence

	floor fence.Token
	arms  int
}

func (f *floored) Floor(string) fence.Token { return f.floor }

func (f *floored) Arm(_ context.Context, all ...fence.Arming) error {
	a := all[0]
	f.arms++
	if a.Token <= f.floor {
		return &fence.NotRaisedError{Resource: a.Resource, Offered: a.Token, Recorded: f.floor}
	}
	return nil
}

// Redis counts from 1, but the fence's floor is known, so one arm is enough.
func TestATokenBeginsAboveTheFloor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		armer := &floored{floor: 34}
		cfg.Armer = armer
		l := started(t, cfg)
		grant, err := acquire(t, l, "r").Grant()
		if err != nil || grant.Token <= 34 || armer.arms != 1 {
			t.Errorf("token %d after %d arms, %v", grant.Token, armer.arms, err)
		}
	})
}
