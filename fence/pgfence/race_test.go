package pgfence_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// The rule under test: once arm has returned, each write under an older grant is committed already, or never will be.

// mutants are guards without one of their safeguards. Each test of the rule must detect them.
var mutants = map[string]struct {
	old, replacement string
	levels           []pgx.TxIsoLevel // where it makes a difference
}{
	"without the lock": {`locked := pg_catalog.pg_try_advisory_xact_lock_shared(`, `locked := 0 OPERATOR(pg_catalog.<>) (`, levels},
	"without the xmax test": {
		`OPERATOR(pg_catalog.=) '0'::pg_catalog.xid
            OR`, `OPERATOR(pg_catalog.=) f.xmax
            OR`,
		[]pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable},
	},
}

// mutate replaces old by replacement in the check of the guard in this database.
func mutate(t testing.TB, w world, old, replacement string) {
	t.Helper()
	mutateFunction(t, w, "fence.fast_check", old, replacement)
}

// mutateFunction does the same in any function. A name that has overloads needs its types.
func mutateFunction(t testing.TB, w world, name, old, replacement string) {
	t.Helper()
	definition := value[string](t, w, `SELECT pg_get_functiondef(to_regproc($1))`, name)
	if strings.Count(definition, old) != 1 {
		t.Fatalf("%s has %q %d times", name, old, strings.Count(definition, old))
	}
	w.exec(t, strings.Replace(definition, old, replacement, 1))
}

// pauseGuard makes the guard wait at a point until the gate is open.
func pauseGuard(t testing.TB, w world, before string) {
	t.Helper()
	mutate(t, w, before, fmt.Sprintf("PERFORM pg_catalog.pg_advisory_xact_lock_shared(%d);\n    %s", gate, before))
}

const gate = 4711

// closeGate closes the gate. The returned function opens it.
func closeGate(t testing.TB, w world) (open func()) {
	t.Helper()
	conn := connect(t, w.pg.URL)
	if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_lock($1)`, gate); err != nil {
		t.Fatal(err)
	}
	return func() {
		if _, err := conn.Exec(t.Context(), `SELECT pg_advisory_unlock($1)`, gate); err != nil {
			t.Error(err)
		}
	}
}

// schedule stops a writer under an older grant at some point until arm has returned. It reports whether the write
// landed after that.
type schedule func(t *testing.T, w world, level pgx.TxIsoLevel) (landedLate bool)

// stoppedBeforeCommit: the writer stops after it has passed the check.
func stoppedBeforeCommit(t *testing.T, w world, level pgx.TxIsoLevel) bool {
	tx := paused(t, w, level, w.acquire(t, orders, 34))
	w.acquire(t, orders, 35)
	return tx.Commit(t.Context()) == nil
}

// stoppedInsideCommit: the writer stops during its COMMIT.
func stoppedInsideCommit(t *testing.T, w world, level pgx.TxIsoLevel) bool {
	w.exec(t, fmt.Sprintf(`CREATE FUNCTION at_gate() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(%d); RETURN NULL; END'`, gate))
	w.exec(t, `CREATE CONSTRAINT TRIGGER at_gate AFTER INSERT ON work DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION at_gate()`)
	tx := paused(t, w, level, w.acquire(t, orders, 34))
	open := closeGate(t, w)
	committed := later(func() error { return tx.Commit(t.Context()) })
	w.waitFor(t, "the writer stands at the gate", waitsForLock)
	w.acquire(t, orders, 35)
	open()
	return <-committed == nil
}

// stoppedAfterSnapshot: the writer has taken its snapshot and not written yet.
func stoppedAfterSnapshot(t *testing.T, w world, level pgx.TxIsoLevel) bool {
	g := w.acquire(t, orders, 34)
	tx := w.begin(t, level, g)
	if _, err := tx.Exec(t.Context(), `SELECT 1`); err != nil {
		t.Fatal(err)
	}
	w.acquire(t, orders, 35)
	return write(t.Context(), tx, g.Token) == nil && tx.Commit(t.Context()) == nil
}

// stoppedInTheGuard: the writer stops inside the check, at the gate.
func stoppedInTheGuard(t *testing.T, w world, level pgx.TxIsoLevel) bool {
	g := w.acquire(t, orders, 34)
	tx := w.begin(t, level, g)
	open := closeGate(t, w)
	written := make(chan error, 1)
	go func() { written <- write(t.Context(), tx, g.Token) }()
	w.waitFor(t, "the writer stands at the gate", waitsForLock)
	w.acquire(t, orders, 35)
	open()
	return <-written == nil && tx.Commit(t.Context()) == nil
}

func TestNoWriteLandsAfterArmReturned(t *testing.T) {
	t.Parallel()
	const beforeLock = `IF plain OR`
	const beforeRead = `SELECT f.token`
	const afterRead = `RETURN recorded`
	cases := []struct {
		name string
		gate string // where the guard stops
		run  schedule
	}{
		{"stopped before COMMIT", "", stoppedBeforeCommit},
		{"stopped inside COMMIT", "", stoppedInsideCommit},
		{"stopped after the snapshot", "", stoppedAfterSnapshot},
		{"stopped before the lock", beforeLock, stoppedInTheGuard},
		{"stopped between lock and read", beforeRead, stoppedInTheGuard},
		{"stopped after the read", afterRead, stoppedInTheGuard},
	}
	caughtBy := map[string][]string{
		"without the lock":      {"stopped before COMMIT", "stopped inside COMMIT", "stopped after the read"},
		"without the xmax test": {"stopped after the snapshot"},
	}
	for _, level := range levels {
		for _, c := range cases {
			t.Run(fmt.Sprintf("%s/%s", level, c.name), func(t *testing.T) {
				t.Parallel()
				w := setup(t)
				if c.gate != "" {
					pauseGuard(t, w, c.gate)
				}
				if c.run(t, w, level) {
					t.Error("a stale write landed after arm had returned")
				}
			})
			for mutant, names := range caughtBy {
				m := mutants[mutant]
				if !slices.Contains(names, c.name) || !slices.Contains(m.levels, level) {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/mutant %s", level, c.name, mutant), func(t *testing.T) {
					t.Parallel()
					w := setup(t)
					mutate(t, w, m.old, m.replacement)
					if c.gate != "" {
						pauseGuard(t, w, c.gate)
					}
					if !c.run(t, w, level) {
						t.Error("the schedule does not catch this mutant, so it proves nothing")
					}
				})
			}
		}
	}
}

// race runs writers at every level against arms, and returns how many writes landed after the arm that superseded
// them had returned. Others arm different resources meanwhile, so that the arms are grouped.
func race(t *testing.T, w world, arms, writers, beside int) (late int) {
	t.Helper()
	var current atomic.Pointer[fence.Grant]
	g := w.acquire(t, orders, 1)
	current.Store(&g)
	ctx, stop := context.WithCancel(t.Context())
	var landed atomic.Int64
	var wg sync.WaitGroup
	for i := range writers {
		level := levels[i%len(levels)]
		wg.Go(func() {
			for ctx.Err() == nil {
				if writeSlowly(ctx, w, level, *current.Load(), i) == nil {
					landed.Add(1)
				}
			}
		})
	}

	for i := range beside {
		wg.Go(func() {
			for token := fence.Token(1); ctx.Err() == nil; token++ {
				a := fence.Arming{Resource: fmt.Sprintf("beside/%d", i), Token: token, SealHash: fence.NewSeal().Hash()}
				if err := w.fence.Arm(ctx, a); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}

	const countOlder = `SELECT count(*) FROM work WHERE token < $1`
	older := make([]int, arms+2)
	for token := fence.Token(2); token < fence.Token(arms+2); token++ {
		g := w.acquire(t, orders, token)
		older[token] = value[int](t, w, countOlder, token)
		current.Store(&g)
		for before := landed.Load(); landed.Load() == before; { // wait for a write under the new grant
			_ = value[int](t, w, `SELECT 1`)
		}
	}
	stop()
	wg.Wait()
	for token := 2; token < arms+2; token++ {
		late += value[int](t, w, countOlder, token) - older[token]
	}
	return late
}

// writeSlowly is a transaction with a few round trips between its steps.
func writeSlowly(ctx context.Context, w world, level pgx.TxIsoLevel, g fence.Grant, dawdle int) error {
	return pgx.BeginTxFunc(ctx, w.writer, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
		const set = `SELECT set_config('fence.resource', $1, true), set_config('fence.token', $2, true)`
		if _, err := tx.Exec(ctx, set, g.Resource, g.Presented()); err != nil { // takes the snapshot
			return err
		}
		for range dawdle % 7 {
			if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
				return err
			}
		}
		if err := write(ctx, tx, g.Token); err != nil {
			return err
		}
		for range dawdle % 5 {
			if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
				return err
			}
		}
		return nil
	})
}

func TestRacesBetweenArmsAndWriters(t *testing.T) {
	t.Parallel()
	const arms, writers = 200, 9
	w := setup(t, pgfence.WithGrace(5*time.Millisecond))
	if late := race(t, w, arms, writers, 0); late > 0 {
		t.Errorf("%d writes landed after arm had returned", late)
	}
	t.Logf("%d arms against %d writers; %d rows landed in time", arms, writers, rows(t, w))
}

func TestRacesBetweenGroupsAndWriters(t *testing.T) {
	t.Parallel()
	const arms, writers, beside = 200, 9, 6
	w := setup(t, pgfence.WithGrace(5*time.Millisecond))
	if late := race(t, w, arms, writers, beside); late > 0 {
		t.Errorf("%d writes landed after arm had returned", late)
	}
}

func TestTheRaceCatchesAGroupWithoutTheKey(t *testing.T) {
	t.Parallel()
	late := caught(t, 60, 6, func() world {
		w := setup(t)
		mutateFunction(t, w, "fence.arm_group", `fence.try_lock(fence.key(f.resource, f.token, f.seal), true)`, `true`)
		return w
	})
	if late == 0 {
		t.Error("ten times 60 arms did not catch it")
	}
}

// caught races in new worlds until writes landed late: on a busy machine one side may stand still during a race.
func caught(t *testing.T, arms, beside int, mutant func() world) (late int) {
	t.Helper()
	for tries := 0; tries < 10 && late == 0; tries++ {
		late = race(t, mutant(), arms, 9, beside)
	}
	return late
}

func TestTheRaceCatchesMutants(t *testing.T) {
	t.Parallel()
	for name, m := range mutants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			late := caught(t, 60, 0, func() world {
				w := setup(t)
				mutate(t, w, m.old, m.replacement)
				return w
			})
			if late == 0 {
				t.Error("ten times 60 arms did not catch it")
			} else {
				t.Logf("%d late writes", late)
			}
		})
	}
}
