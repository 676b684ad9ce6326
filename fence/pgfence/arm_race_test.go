package pgfence_test

import (
	"cmp"
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
	tx := paused(t, w, level, w.renew(t))
	w.renew(t)
	return tx.Commit(t.Context()) == nil
}

// stoppedInsideCommit: the writer stops during its COMMIT.
func stoppedInsideCommit(t *testing.T, w world, level pgx.TxIsoLevel) bool {
	w.exec(t, fmt.Sprintf(`CREATE OR REPLACE FUNCTION at_gate() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_advisory_xact_lock_shared(%d); RETURN NULL; END'`, gate))
	w.exec(t, `CREATE CONSTRAINT TRIGGER at_gate AFTER INSERT ON work DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION at_gate()`)
	tx := paused(t, w, level, w.renew(t))
	open := closeGate(t, w)
	committed := later(func() error { return tx.Commit(t.Context()) })
	w.waitFor(t, "the writer stands at the gate", waitsForLock)
	w.renew(t)
	open()
	err := <-committed
	w.exec(t, `DROP TRIGGER at_gate ON work`)
	return err == nil
}

// stoppedAfterSnapshot: the writer has taken its snapshot and not written yet.
func stoppedAfterSnapshot(t *testing.T, w world, level pgx.TxIsoLevel) bool {
	g := w.renew(t)
	tx := w.begin(t, level, g)
	if _, err := tx.Exec(t.Context(), `SELECT 1`); err != nil {
		t.Fatal(err)
	}
	w.renew(t)
	return write(t.Context(), tx, g.Token) == nil && tx.Commit(t.Context()) == nil
}

// stoppedInTheGuard: the writer stops inside the check, at the gate.
func stoppedInTheGuard(t *testing.T, w world, level pgx.TxIsoLevel) bool {
	g := w.renew(t)
	tx := w.begin(t, level, g)
	open := closeGate(t, w)
	written := make(chan error, 1)
	go func() { written <- write(t.Context(), tx, g.Token) }()
	w.waitFor(t, "the writer stands at the gate", waitsForLock)
	w.renew(t)
	open()
	return <-written == nil && tx.Commit(t.Context()) == nil
}

// place is where a schedule stops the writer.
type place struct {
	name, gate string // where the check stops
	run        schedule
	bad        []string // mutants that land a write in this schedule
}

const (
	beforeLock = `IF plain OR`
	beforeRead = `SELECT f.token`
	afterRead  = `RETURN recorded`
)

// makesDifference reports whether a mutant lands a write at a level, with a presentation.
func makesDifference(mutant string, how presentation, level pgx.TxIsoLevel) bool {
	if how.name == "" {
		return slices.Contains(mutants[mutant].levels, level)
	}
	snapshot := level != pgx.ReadCommitted
	return (mutant == "without the xmax test") == snapshot && !(snapshot && how.touched)
}

// nothingLandsLate runs the schedules at each level with each presentation: a write lands after arm has returned with a
// mutant, and never without. A world serves all that need the same check.
func nothingLandsLate(t *testing.T, world func(t *testing.T) world, places []place, hows []presentation, levels []pgx.TxIsoLevel) {
	t.Helper()
	type check struct{ gate, mutant string }
	type run struct {
		place
		how   presentation
		level pgx.TxIsoLevel
	}
	runs := make(map[check][]run)
	for _, p := range places {
		for _, mutant := range append([]string{""}, p.bad...) {
			for _, how := range hows {
				for _, level := range levels {
					if c := (check{p.gate, mutant}); mutant == "" || makesDifference(mutant, how, level) {
						runs[c] = append(runs[c], run{p, how, level})
					}
				}
			}
		}
	}
	for c, all := range runs {
		t.Run(cmp.Or(c.mutant, "no mutant")+" "+c.gate, func(t *testing.T) {
			t.Parallel()
			w := world(t)
			if c.mutant != "" {
				mutate(t, w, mutants[c.mutant].old, mutants[c.mutant].replacement)
			}
			if c.gate != "" {
				pauseGuard(t, w, c.gate)
			}
			for _, r := range all {
				t.Run(fmt.Sprintf("%s/%s/%s", r.level, r.name, r.how.name), func(t *testing.T) {
					w := w
					w.how = r.how
					if late := r.run(t, w, r.level); late != (c.mutant != "") {
						t.Errorf("a stale write landed after arm had returned: %t", late)
					}
				})
			}
		})
	}
}

func TestNoWriteLandsAfterArmReturned(t *testing.T) {
	t.Parallel()
	nothingLandsLate(t, func(t *testing.T) world { return setup(t) }, []place{
		{"stopped before COMMIT", "", stoppedBeforeCommit, []string{"without the lock"}},
		{"stopped inside COMMIT", "", stoppedInsideCommit, []string{"without the lock"}},
		{"stopped after the snapshot", "", stoppedAfterSnapshot, []string{"without the xmax test"}},
		{"stopped before the lock", beforeLock, stoppedInTheGuard, nil},
		{"stopped between lock and read", beforeRead, stoppedInTheGuard, nil},
		{"stopped after the read", afterRead, stoppedInTheGuard, []string{"without the lock"}},
	}, []presentation{{}}, levels)
}

// renew acquires the next token of [orders].
func (w world) renew(t testing.TB) fence.Grant {
	t.Helper()
	next := value[fence.Token](t, w, `SELECT coalesce(max(token), 0) + 1 FROM fence.resources WHERE resource = $1`, orders)
	return w.acquire(t, orders, next)
}

// race runs writers at every level against arms, and returns how many writes landed after the arm that superseded
// them had returned. Others arm different resources at the same time, so that the arms are grouped.
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

// The arms are grouped with those of other resources.
func TestRacesBetweenArmsAndWriters(t *testing.T) {
	t.Parallel()
	const arms, writers, beside = 60, 9, 6
	w := setup(t, pgfence.WithGrace(5*time.Millisecond))
	if late := race(t, w, arms, writers, beside); late > 0 {
		t.Errorf("%d writes landed after arm had returned", late)
	}
	t.Logf("%d arms against %d writers; %d rows landed in time", arms, writers, rows(t, w))
}

// In 60 arms some writer always stands between its write and its COMMIT.
func TestTheRaceCatchesAGroupWithoutTheKey(t *testing.T) {
	t.Parallel()
	w := setup(t)
	mutateFunction(t, w, "fence.arm_group", `fence.try_lock(fence.key(f.resource, f.token, f.seal), true)`, `true`)
	late := race(t, w, 60, 9, 6)
	if t.Logf("%d late writes", late); late == 0 {
		t.Error("60 arms did not catch it")
	}
}
