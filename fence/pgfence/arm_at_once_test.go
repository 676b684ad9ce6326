package pgfence_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
)

// Arming at once does not drain: it holds a lock until its COMMIT is done.

const (
	sqlArm        = `SELECT fence.arm($1, $2, $3, '')`
	sqlArmInGroup = `SELECT (fence.arm_group(ARRAY['beside', $1], ARRAY[$2::bigint, $2], ARRAY[$3::bytea, $3], ARRAY['', '']))[2]`
)

// armInto begins to arm at once, in a transaction that is not committed yet.
func armInto(t *testing.T, w world, sql string, token fence.Token) pgx.Tx {
	t.Helper()
	tx, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var armed bool
	if err := tx.QueryRow(t.Context(), sql, orders, int64(token), fence.NewSeal().Hash()).Scan(&armed); err != nil || !armed {
		t.Fatalf("not armed at once: %v", err)
	}
	return tx
}

// writesDuring makes a writer under g write until it has written or waits; end ends what it waits for. It returns the
// transaction and the error of the write.
func writesDuring(t *testing.T, w world, level pgx.TxIsoLevel, g fence.Grant, end func()) (pgx.Tx, error) {
	t.Helper()
	tx := begin(t, w.session(t), level, g)
	written := make(chan error, 1)
	go func() { written <- write(t.Context(), tx, g.Token) }()
	for deadline := time.Now().Add(20 * time.Second); len(written) == 0 && !value[bool](t, w, waitsForLock); {
		if time.Now().After(deadline) {
			t.Fatal("the writer neither waits nor goes on")
		}
	}
	end()
	return tx, <-written
}

// startedDuringArm: the writer begins after the row was changed and before the COMMIT is done.
func startedDuringArm(t *testing.T, w world, level pgx.TxIsoLevel) (landedLate bool) {
	return startedDuring(t, w, sqlArm, level)
}

func startedDuringGroup(t *testing.T, w world, level pgx.TxIsoLevel) (landedLate bool) {
	return startedDuring(t, w, sqlArmInGroup, level)
}

// stoppedBeforeGroup: the writer has passed the check when a group arms. The resources that the group skips are armed
// alone.
func stoppedBeforeGroup(t *testing.T, w world, level pgx.TxIsoLevel) (landedLate bool) {
	g := w.renew(t)
	tx := paused(t, w, level, g)
	seal := fence.NewSeal()
	if !value[bool](t, w, sqlArmInGroup, orders, int64(g.Token)+1, seal.Hash()) {
		if err := w.fence.Arm(t.Context(), fence.Arming{Resource: orders, Token: g.Token + 1, SealHash: seal.Hash()}); err != nil {
			t.Fatal(err)
		}
	}
	return tx.Commit(t.Context()) == nil
}

func startedDuring(t *testing.T, w world, sql string, level pgx.TxIsoLevel) (landedLate bool) {
	g := w.renew(t)
	arming := armInto(t, w, sql, g.Token+1)
	tx, err := writesDuring(t, w, level, g, func() {
		if err := arming.Commit(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return err == nil && tx.Commit(t.Context()) == nil
}

func TestNoWriterPassesDuringAnArmAtOnce(t *testing.T) {
	t.Parallel()
	const take = `fence.try_lock(fence.key(f.resource, f.token, f.seal), true)`
	const key = `fence.key(f.resource, f.token, f.seal)`
	without := strings.NewReplacer(take, `true`)
	early := strings.NewReplacer(take, `pg_catalog.pg_try_advisory_lock(`+key+`) AND pg_catalog.pg_advisory_unlock(`+key+`)`)
	checks := []struct {
		name   string
		mutant *strings.Replacer // nil: the real function
		in     string            // the mutated function
		runs   map[string]schedule
	}{
		{name: "as it is", runs: map[string]schedule{
			"started during arm": startedDuringArm, "started during a group": startedDuringGroup, "stopped before a group": stoppedBeforeGroup,
		}},
		{"arm without the key", without, "fence.arm", map[string]schedule{"started during arm": startedDuringArm, "stopped before COMMIT": stoppedBeforeCommit}},
		{"arm that gives the key back early", early, "fence.arm", map[string]schedule{"started during arm": startedDuringArm}},
		{"a group without the key", without, "fence.arm_group", map[string]schedule{
			"started during a group": startedDuringGroup, "stopped before a group": stoppedBeforeGroup,
		}},
		{"a group that gives the key back early", early, "fence.arm_group", map[string]schedule{"started during a group": startedDuringGroup}},
	}
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			if c.mutant != nil {
				definition := value[string](t, w, `SELECT pg_get_functiondef($1::regproc)`, c.in)
				mutated := c.mutant.Replace(definition)
				if mutated == definition {
					t.Fatalf("%s does not take the key as it did", c.in)
				}
				w.exec(t, mutated)
			}
			for _, level := range levels {
				for name, run := range c.runs {
					t.Run(fmt.Sprintf("%s/%s", level, name), func(t *testing.T) {
						if late := run(t, w, level); late != (c.mutant != nil) {
							t.Errorf("a stale write landed late: %t", late)
						}
					})
				}
			}
		})
	}
}

func TestAWriterGoesOnWhenAnArmAtOnceIsAbandoned(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			g := w.acquire(t, orders, 34)
			arming := armInto(t, w, sqlArm, 35)
			tx, err := writesDuring(t, w, level, g, func() {
				if err := arming.Rollback(t.Context()); err != nil {
					t.Error(err)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// If arming at once would be unsafe, fence.arm reports that and changes nothing.
func TestArmingAtOnceLeavesTheRestToRaiseAndDrain(t *testing.T) {
	t.Parallel()
	w := setup(t)
	once := func(token fence.Token, hash []byte) bool {
		t.Helper()
		return value[bool](t, w, `SELECT fence.arm($1, $2, $3, 'test')`, orders, int64(token), hash)
	}
	recorded := func() fence.Token {
		return value[fence.Token](t, w, `SELECT token FROM fence.resources WHERE resource = $1`, orders)
	}
	first, second := fence.NewSeal(), fence.NewSeal()
	if !once(1, first.Hash()) || recorded() != 1 {
		t.Error("the first grant is not armed at once")
	}
	for name, stale := range map[string]bool{
		"the same token": once(1, first.Hash()), "another seal": once(1, second.Hash()), "the same seal": once(2, first.Hash()),
	} {
		if stale || recorded() != 1 {
			t.Errorf("%s: said %t, and the fence stands at %d", name, stale, recorded())
		}
	}
	tx := paused(t, w, pgx.ReadCommitted, fence.Grant{Resource: orders, Token: 1, Seal: first})
	if once(2, second.Hash()) || recorded() != 1 {
		t.Error("armed at once while a writer was in flight")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.exec(t, `SELECT fence.raise($1, 2, $2, 'died')`, orders, second.Hash())
	if !once(3, fence.NewSeal().Hash()) || value[int](t, w, `SELECT undrained FROM fence.fences`) != 0 {
		t.Error("keys that an earlier raise left are not cleared")
	}
	raise, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := raise.Exec(t.Context(), `SELECT fence.raise($1, 5, $2, '')`, orders, fence.NewSeal().Hash()); err != nil {
		t.Fatal(err)
	}
	if once(6, fence.NewSeal().Hash()) {
		t.Error("armed at once although a raise was not committed")
	}
	if err := raise.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}
