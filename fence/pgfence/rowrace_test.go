package pgfence_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/pgfence"
)

// perRowRace is a world whose table `work` has a resource for each row; rows of [write] need [orders].
func perRowRace(t *testing.T, opts ...pgfence.Option) world {
	t.Helper()
	w := setup(t, opts...)
	w.exec(t, `ALTER TABLE work ADD doc int DEFAULT 1001; SELECT fence.protect('work', per_row => $$'orders/' || doc$$, stamp => 'token')`)
	return w
}

// The rule of race_test.go holds for tables with a resource per row. The guard before the statement is removed, to
// show that the triggers after the statement are sufficient at every point.
func TestNoRowLandsAfterArmReturned(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		gate string // where the check stops
		run  schedule
		bad  []string // mutants that land a write in this schedule
	}{
		{"stopped before COMMIT", "", stoppedBeforeCommit, []string{"without the lock"}},
		{"stopped inside COMMIT", "", stoppedInsideCommit, []string{"without the lock"}},
		{"stopped after the snapshot", "", stoppedAfterSnapshot, []string{"without the xmax test"}},
		{"stopped behind its write, before the lock", `IF plain OR`, stoppedInTheGuard, nil},
		{"stopped between lock and read", `SELECT f.token`, stoppedInTheGuard, nil},
		{"stopped after the read", `RETURN recorded`, stoppedInTheGuard, []string{"without the lock"}},
	}
	for _, level := range levels {
		for _, c := range cases {
			for _, mutant := range append([]string{""}, c.bad...) {
				m := mutants[mutant]
				if mutant != "" && !slices.Contains(m.levels, level) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/%s", level, c.name, mutant), func(t *testing.T) {
					t.Parallel()
					w := perRowRace(t)
					w.exec(t, `DROP TRIGGER fence_guard ON work`)
					if mutant != "" {
						mutate(t, w, m.old, m.replacement)
					}
					if c.gate != "" {
						pauseGuard(t, w, c.gate)
					}
					switch late := c.run(t, w, level); {
					case late && mutant == "":
						t.Error("a stale row landed after arm had returned")
					case !late && mutant != "":
						t.Error("the schedule does not catch this mutant, so it proves nothing")
					}
				})
			}
		}
	}
}

func TestRacesBetweenArmsAndWritersOfRows(t *testing.T) {
	t.Parallel()
	const arms, writers = 40, 9
	w := perRowRace(t, pgfence.WithGrace(5*time.Millisecond))
	if late := race(t, w, arms, writers, 0); late > 0 {
		t.Errorf("%d rows landed after arm had returned", late)
	}
	t.Logf("%d arms against %d writers; %d rows landed in time", arms, writers, rows(t, w))
}

func TestTheRaceOfRowsCatchesAMissingLock(t *testing.T) {
	t.Parallel()
	late := caught(t, 40, 0, func() world {
		w, m := perRowRace(t), mutants["without the lock"]
		mutate(t, w, m.old, m.replacement)
		return w
	})
	if late == 0 {
		t.Error("ten times 40 arms did not catch it")
	}
}
