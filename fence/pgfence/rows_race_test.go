package pgfence_test

import (
	"testing"

	"github.com/fencegate/fencegate/fence/pgfence"
)

// perRowRace is a world whose table `work` has a resource for each row; rows of [write] need [orders].
func perRowRace(t *testing.T, opts ...pgfence.Option) world {
	t.Helper()
	w := setup(t, opts...)
	w.exec(t, `ALTER TABLE work ADD doc int DEFAULT 1001; SELECT fence.protect('work', per_row => $$'orders/' || doc$$, stamp => 'token')`)
	return w
}

// The rule of arm_race_test.go holds for tables with a resource per row. The guard before the statement is removed, to
// show that the triggers after the statement are sufficient at every point.
func TestNoRowLandsAfterArmReturned(t *testing.T) {
	t.Parallel()
	withoutGuard := func(t *testing.T) world {
		w := perRowRace(t)
		w.exec(t, `DROP TRIGGER fence_guard ON work`)
		return w
	}
	nothingLandsLate(t, withoutGuard, []place{
		{"stopped before COMMIT", "", stoppedBeforeCommit, []string{"without the lock"}},
		{"stopped inside COMMIT", "", stoppedInsideCommit, []string{"without the lock"}},
		{"stopped after the snapshot", "", stoppedAfterSnapshot, []string{"without the xmax test"}},
		{"stopped behind its write, before the lock", beforeLock, stoppedInTheGuard, nil},
		{"stopped between lock and read", beforeRead, stoppedInTheGuard, nil},
		{"stopped after the read", afterRead, stoppedInTheGuard, []string{"without the lock"}},
	}, []presentation{{}}, levels)
}
