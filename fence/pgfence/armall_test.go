package pgfence_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// grantsOf creates grants of one token with new seals, and their armings.
func grantsOf(token fence.Token, resources ...string) (grants []fence.Grant, armings []fence.Arming) {
	for _, r := range resources {
		g := fence.Grant{Resource: r, Token: token, Seal: fence.NewSeal()}
		grants, armings = append(grants, g), append(armings, arming(g))
	}
	return grants, armings
}

func TestArmAllRaisesAndDrainsAll(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			w := setupMany(t)
			old, armings := grantsOf(3, users, orders, "team/a")
			if err := w.fence.Arm(t.Context(), armings...); err != nil {
				t.Fatal(err)
			}
			if err := w.fence.Arm(t.Context(), armings...); err != nil {
				t.Errorf("again: %v", err)
			}
			stalled := make([]pgx.Tx, 0, 2)
			for i, table := range []string{"people", "work"} {
				tx := begin(t, w.session(t), level, old[i])
				if err := insertInto(t.Context(), tx, table, 3); err != nil {
					t.Fatal(err)
				}
				stalled = append(stalled, tx)
			}
			current, armings := grantsOf(4, orders, "team/a", users)
			if err := w.fence.Arm(t.Context(), armings...); err != nil {
				t.Fatal(err)
			}
			for i, tx := range stalled {
				if tx.Commit(t.Context()) == nil {
					t.Errorf("stale writer %d committed after ArmAll had returned", i)
				}
			}
			err := pgfence.InTxAll(t.Context(), w.writer, pgfence.TxOptions{TxOptions: pgx.TxOptions{IsoLevel: level}}, current, func(tx pgx.Tx) error {
				return errors.Join(insertInto(t.Context(), tx, "people", 4), insertInto(t.Context(), tx, "work", 4), insertInto(t.Context(), tx, "below", 4))
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

func TestArmAllRaisesNothingWhereOneIsNotLower(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.acquire(t, "b", 5)
	kept := w.acquire(t, "a", 2)
	const state = `SELECT string_agg(format('%s %s %s %s', resource, token, xmin, xmax), '; ' ORDER BY resource) FROM fence.resources`
	before := value[string](t, w, state)
	for name, armings := range map[string][]fence.Arming{
		"lower":                      {{Resource: "c", Token: 1}, {Resource: "b", Token: 4}, arming(kept)},
		"the same with another seal": {{Resource: "a", Token: 3}, {Resource: "b", Token: 5, SealHash: fence.NewSeal().Hash()}},
	} {
		err := w.fence.Arm(t.Context(), armings...)
		var low *fence.NotRaisedError
		if !errors.As(err, &low) || low.Resource != "b" || low.Recorded != 5 {
			t.Errorf("%s: %v", name, err)
		}
		if after := value[string](t, w, state); after != before {
			t.Errorf("%s: changed from %s to %s", name, before, after)
		}
	}
	for name, armings := range map[string][]fence.Arming{
		"nothing": nil, "a name twice": {{Resource: "a", Token: 8}, {Resource: "a", Token: 9}}, "a malformed one": {{Resource: "a", Token: 8}, {Resource: "b*", Token: 9}},
	} {
		if err := w.fence.Arm(t.Context(), armings...); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := value[string](t, w, state); after != before {
		t.Errorf("changed from %s to %s", before, after)
	}
}

// Calls with common resources, single arms and writers under several grants run concurrently: none waits forever,
// none deadlocks, and no call gets only part of its resources.
func TestArmAllOfCommonResources(t *testing.T) {
	t.Parallel()
	w := setupMany(t, pgfence.WithGrace(2*time.Millisecond))
	names := []string{"team/a", orders, "team/b", users, "team/c"}
	var next atomic.Int64
	next.Store(1)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	var took atomic.Int64
	for worker := range 4 {
		wg.Go(func() {
			for range 25 {
				if err := armSome(ctx, w, names, fence.Token(next.Add(1)), worker); err == nil {
					took.Add(1)
				} else if !errors.Is(err, fence.ErrNotRaised) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if took.Load() < 10 {
		t.Errorf("only %d of 100 armed", took.Load())
	}
	t.Logf("%d of 100 armed", took.Load())
}

// armSome arms three resources in any order, or one, and writes under the result.
func armSome(ctx context.Context, w world, names []string, token fence.Token, worker int) error {
	order := rand.Perm(len(names))[:3]
	if worker == 0 {
		order = order[:1]
	}
	picked := make([]string, len(order))
	for i, n := range order {
		picked[i] = names[n]
	}
	grants, armings := grantsOf(token, picked...)
	var err error
	if len(armings) == 1 {
		err = w.fence.Arm(ctx, armings[0])
	} else {
		err = w.fence.Arm(ctx, armings...)
	}
	if err != nil {
		return err
	}
	// A newer grant may have superseded it: then the write is refused or its session ended.
	_ = pgfence.InTxAll(ctx, w.writer, pgfence.TxOptions{TxOptions: pgx.TxOptions{IsoLevel: levels[worker%3]}}, grants, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT 1`)
		return err
	})
	return nil
}

// A process that dies between raise and drain leaves stale writers in flight. The next arm ends them.
func TestArmAllAfterACrashBetweenRaiseAndDrain(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{true, false} {
		t.Run(fmt.Sprintf("the same grants again: %v", again), func(t *testing.T) {
			t.Parallel()
			w := setupMany(t)
			old, armings := grantsOf(3, orders, users)
			if err := w.fence.Arm(t.Context(), armings...); err != nil {
				t.Fatal(err)
			}
			tx := begin(t, w.session(t), pgx.ReadCommitted, old[1])
			if err := insertInto(t.Context(), tx, "people", 3); err != nil {
				t.Fatal(err)
			}
			_, armings = grantsOf(4, orders, users)
			raised := value[bool](t, w, `SELECT raised FROM fence.raise_all($1, $2, $3, $4)`, []string{orders, users}, []int64{4, 4},
				[][]byte{armings[0].SealHash, armings[1].SealHash}, []string{"", ""})
			if !raised {
				t.Fatal("not raised")
			}
			if !again {
				_, armings = grantsOf(5, orders, users)
			}
			if err := w.fence.Arm(t.Context(), armings...); err != nil {
				t.Error(err)
			}
			if tx.Commit(t.Context()) == nil {
				t.Error("a stale writer committed after ArmAll had returned")
			}
		})
	}
}

func TestArmAllAsksAgainWhenTheAnswerWasLost(t *testing.T) {
	t.Parallel()
	w := setup(t)
	var line wire
	pool := line.pool(t, w.pg.GatewayURL, pgx.QueryExecModeCacheStatement)
	f := pgfence.New(pool)
	_, armings := grantsOf(1, "a", "b")
	if err := f.Arm(t.Context(), armings...); err != nil {
		t.Fatal(err)
	}
	_, armings = grantsOf(2, "b", "a")
	line.lose.Store(1)
	if err := f.Arm(t.Context(), armings...); err != nil {
		t.Errorf("one answer lost: %v", err)
	}
	_, armings = grantsOf(3, "a", "b")
	line.lose.Store(1000)
	if err := f.Arm(t.Context(), armings...); !errors.Is(err, fence.ErrUnknown) {
		t.Errorf("all answers lost: %v", err)
	}
}

func TestArmAllSaysWhoIsInTheWay(t *testing.T) {
	t.Parallel()
	w := setup(t, pgfence.WithDrainLimit(300*time.Millisecond))
	w.acquire(t, "a", 1)
	holder := connect(t, w.pg.URL)
	if _, err := holder.Exec(t.Context(), `BEGIN; SELECT FROM fence.arms WHERE resource = 'a' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	_, armings := grantsOf(2, "b", "a")
	err := w.fence.Arm(t.Context(), armings...)
	var undrained *fence.UndrainedError
	if !errors.As(err, &undrained) || undrained.Token != 0 || undrained.Resource != "a" {
		t.Errorf("got %v", err)
	}
	if n := value[int](t, w, `SELECT count(*) FROM fence.resources WHERE resource = 'b'`); n != 0 {
		t.Error("half was raised")
	}
}

// fence.raise_all sorts the names, whatever the caller's order. It holds the first name's turn while it waits for the
// second's.
func TestRaiseAllTakesTurnsInTheOrderOfNames(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.acquire(t, "a", 1)
	w.acquire(t, "b", 1)
	holder, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := holder.Exec(t.Context(), `SELECT FROM fence.arms WHERE resource = 'b' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, w.pg.GatewayURL)
	raised := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), `SELECT fence.raise_all('{b,a}', '{2,2}', '{NULL,NULL}', '{x,y}', '1 minute')`)
		raised <- err
	}()
	w.waitFor(t, "it waits for the turn of b, and has that of a", `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock')
		AND NOT EXISTS (SELECT FROM fence.arms WHERE resource = 'a' FOR UPDATE SKIP LOCKED)`, conn.PgConn().PID())
	_ = holder.Rollback(t.Context())
	if err := <-raised; err != nil {
		t.Error(err)
	}
}
