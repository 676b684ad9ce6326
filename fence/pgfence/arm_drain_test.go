package pgfence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// paused is a writer that has passed the check and not committed yet.
func paused(t testing.TB, w world, level pgx.TxIsoLevel, g fence.Grant) pgx.Tx {
	t.Helper()
	tx := w.begin(t, level, g)
	if err := write(t.Context(), tx, g.Token); err != nil {
		t.Fatal(err)
	}
	return tx
}

func TestArmEndsAStaleTransactionInFlight(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			tx := paused(t, w, level, w.acquire(t, orders, 34))
			bystander := begin(t, w.session(t), level, w.acquire(t, "other", 1))
			if err := pgfence.Check(t.Context(), bystander); err != nil {
				t.Fatal(err)
			}

			start := time.Now()
			w.acquire(t, orders, 35)
			if took := time.Since(start); took < 150*time.Millisecond {
				t.Errorf("arm returned after %v, without giving the grace", took)
			}
			if err := tx.Commit(t.Context()); err == nil {
				t.Error("the stale transaction committed after arm had returned")
			}
			if err := bystander.Commit(t.Context()); err != nil {
				t.Errorf("the holder of another resource was ended too: %v", err)
			}
			if n := value[int](t, w, `SELECT count(*) FROM work`); n != 0 {
				t.Errorf("%d stale rows", n)
			}
		})
	}
}

func TestATransactionMayEndWithinTheGrace(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			w := setup(t, pgfence.WithGrace(time.Minute), pgfence.WithDrainLimit(time.Minute))
			g := w.acquire(t, orders, 34)
			tx := paused(t, w, level, g)
			armed := make(chan error, 1)
			go func() {
				armed <- w.fence.Arm(t.Context(), fence.Arming{Resource: orders, Token: 35, SealHash: fence.NewSeal().Hash()})
			}()
			w.waitFor(t, "arm drains", waitsForLock)
			select {
			case err := <-armed:
				t.Fatalf("arm returned while a stale transaction was in flight: %v", err)
			default:
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Errorf("it was ended within the grace: %v", err)
			}
			if err := <-armed; err != nil {
				t.Error(err)
			}
		})
	}
}

// waitsForLock is true if a session waits for an advisory lock in this database.
const waitsForLock = `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
	AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`

// A transaction whose snapshot is older than the arm can't write after it.
func TestAnOldSnapshotIsStale(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			g := w.acquire(t, orders, 34)
			tx := begin(t, w.session(t), level, g)
			if _, err := tx.Exec(t.Context(), `SELECT 1`); err != nil { // takes the snapshot
				t.Fatal(err)
			}
			w.acquire(t, orders, 35)
			err := write(t.Context(), tx, g.Token)
			wantCode(t, err, "ZF001")
			_ = tx.Rollback(t.Context())

			// The new holder can't write from a snapshot that may miss the old holder's last commit either.
			tx = begin(t, w.session(t), level, g)
			if _, err := tx.Exec(t.Context(), `SELECT 1`); err != nil {
				t.Fatal(err)
			}
			newer := w.acquire(t, orders, 36)
			set(t, tx, newer.Resource, newer.Presented())
			err = write(t.Context(), tx, newer.Token)
			if level == pgx.ReadCommitted {
				if err != nil {
					t.Error(err)
				}
			} else if pg := refusalOf(t, err); pg.Code != "ZF003" || !strings.Contains(pg.Hint, "begin a new transaction") {
				t.Errorf("%v, HINT %q", err, pg.Hint)
			}
		})
	}
}

func TestACrashBetweenRaiseAndDrainIsMadeGoodByTheNextArm(t *testing.T) {
	t.Parallel()
	w := setup(t)
	tx := paused(t, w, pgx.ReadCommitted, w.acquire(t, orders, 34))
	w.exec(t, `SELECT fence.raise($1, 35, $2, 'died')`, orders, fence.NewSeal().Hash())
	w.acquire(t, orders, 36)
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("a transaction of token 34 committed after 36 was armed")
	}
	// The next raise forgets what was drained.
	w.acquire(t, orders, 37)
	if n := value[int](t, w, `SELECT undrained FROM fence.fences`); n != 0 {
		t.Errorf("%d keys are kept", n)
	}
}

func TestARaiseThatIsNotCommittedDelaysNoWriter(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for i, level := range levels {
		g := w.acquire(t, orders, fence.Token(10*i+1))
		raising, err := w.admin.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		hash := fence.NewSeal().Hash()
		if _, err := raising.Exec(t.Context(), `SELECT fence.raise($1, $2, $3, '')`, orders, 10*i+2, hash); err != nil {
			t.Fatal(err)
		}
		tx := paused(t, w, level, g)
		if err := raising.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		err = w.fence.Arm(t.Context(), fence.Arming{Resource: orders, Token: fence.Token(10*i + 2), SealHash: hash})
		if err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err == nil {
			t.Errorf("%s: committed after arm had returned", level)
		}
	}
}

func TestAPreparedTransactionIsNamed(t *testing.T) {
	t.Parallel()
	w := setup(t, pgfence.WithGrace(10*time.Millisecond))
	tx := paused(t, w, pgx.ReadCommitted, w.acquire(t, orders, 34))
	gid := fmt.Sprintf("%s it's %d", w.pg.Database, counter.Add(1))
	if _, err := tx.Exec(t.Context(), `PREPARE TRANSACTION '`+strings.ReplaceAll(gid, "'", "''")+`'`); err != nil {
		t.Fatal(err)
	}
	next := fence.Arming{Resource: orders, Token: 35, SealHash: fence.NewSeal().Hash()}
	err := w.fence.Arm(t.Context(), next)
	var undrained *fence.UndrainedError
	if !errors.As(err, &undrained) || undrained.Token != 35 || !strings.Contains(undrained.Detail, strings.ReplaceAll(gid, "'", "''")) {
		t.Errorf("got %v (%+v), want an UndrainedError that names %q", err, undrained, gid)
	}
	if code, _ := fence.CodeOf(err); code.Hint != refusalOf(t, err).Hint {
		t.Errorf("HINT %q, want %q", refusalOf(t, err).Hint, code.Hint)
	}
	w.exec(t, `ROLLBACK PREPARED '`+strings.ReplaceAll(gid, "'", "''")+`'`)
	if err := w.fence.Arm(t.Context(), next); err != nil {
		t.Errorf("the same arm, after the cause was removed: %v", err)
	}
}

// fence_owner may not end a superuser's session.
func TestASessionThatMayNotBeEndedIsNamed(t *testing.T) {
	t.Parallel()
	w := setup(t, pgfence.WithGrace(10*time.Millisecond))
	g := w.acquire(t, orders, 34)
	tx := begin(t, connect(t, w.pg.URL), pgx.ReadCommitted, g)
	if err := write(t.Context(), tx, g.Token); err != nil {
		t.Fatal(err)
	}
	next := fence.Arming{Resource: orders, Token: 35, SealHash: fence.NewSeal().Hash()}
	err := w.fence.Arm(t.Context(), next)
	if !errors.Is(err, fence.ErrUndrained) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", tx.Conn().PgConn().PID())) {
		t.Errorf("got %v, want the process named", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.fence.Arm(t.Context(), next); err != nil {
		t.Error(err)
	}
}

func TestAMissingPrivilegeSaysHowToGrantIt(t *testing.T) {
	t.Parallel()
	w := setup(t, pgfence.WithGrace(10*time.Millisecond))
	login := connect(t, w.pg.As(t)).Config().User
	for _, sql := range []string{
		`GRANT USAGE, CREATE ON SCHEMA fence TO %s`, `GRANT SELECT ON fence.resources TO %s`,
		`GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fence TO %s`,
		`ALTER FUNCTION fence.drain(text, bigint, bytea, interval, interval) OWNER TO %s`,
	} {
		w.exec(t, fmt.Sprintf(sql, pgx.Identifier{login}.Sanitize()))
	}
	tx := paused(t, w, pgx.ReadCommitted, w.acquire(t, orders, 34))
	err := w.fence.Arm(t.Context(), fence.Arming{Resource: orders, Token: 35, SealHash: fence.NewSeal().Hash()})
	if !errors.Is(err, fence.ErrUndrained) || !strings.Contains(err.Error(), "GRANT pg_signal_backend TO "+login) {
		t.Errorf("got %v, want what to grant", err)
	}
	_ = tx.Rollback(t.Context())
}

// The guard has fence.key inlined; both must lock the same key.
func TestTheGuardLocksTheKeyThatDrainWaitsFor(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	tx := paused(t, w, pgx.ReadCommitted, g)
	var pids []int
	rows, _ := w.admin.Query(t.Context(), `SELECT pid FROM fence.holders(fence.key($1, 34, $2))`, orders, g.Seal.Hash())
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil || len(pids) != 1 || pids[0] != int(tx.Conn().PgConn().PID()) {
		t.Errorf("holders %v, %v", pids, err)
	}
}

func TestArmGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	w := setup(t, pgfence.WithGrace(time.Minute), pgfence.WithDrainLimit(time.Hour))
	paused(t, w, pgx.ReadCommitted, w.acquire(t, orders, 34))
	ctx, cancel := context.WithCancel(t.Context())
	armed := make(chan error, 1)
	go func() {
		armed <- w.fence.Arm(ctx, fence.Arming{Resource: orders, Token: 35, SealHash: bytes.Repeat([]byte{1}, 32)})
	}()
	w.waitFor(t, "arm drains", waitsForLock)
	cancel()
	if err := <-armed; !errors.Is(err, context.Canceled) || !errors.Is(err, fence.ErrUnknown) {
		t.Errorf("got %v", err)
	}

	// With a deadline the drain answers before it, even if the grace period is longer.
	ctx, cancel = context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	if err := w.fence.Arm(ctx, fence.Arming{Resource: orders, Token: 36, SealHash: fence.NewSeal().Hash()}); err != nil {
		t.Error(err)
	}
}

// Draining must not end a session that holds a different lock that looks the same.
func TestDrainEndsNobodyElse(t *testing.T) {
	t.Parallel()
	w := setup(t, pgfence.WithGrace(10*time.Millisecond))
	g := w.acquire(t, orders, 34)
	key := value[int64](t, w, `SELECT fence.key($1, 34, $2)`, orders, g.Seal.Hash())
	bystander := w.session(t)
	for _, lookalike := range []int64{key ^ 1, key ^ 1<<32, key ^ math.MinInt64, -key} {
		if _, err := bystander.Exec(t.Context(), `SELECT pg_advisory_lock_shared($1)`, lookalike); err != nil {
			t.Fatal(err)
		}
	}
	// The form with two numbers is a different lock with the same halves.
	if _, err := bystander.Exec(t.Context(), `SELECT pg_advisory_lock_shared($1, $2)`, int32(key>>32), int32(key)); err != nil {
		t.Fatal(err)
	}
	tx := paused(t, w, pgx.ReadCommitted, g)
	w.acquire(t, orders, 35)
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("the stale writer was not ended")
	}
	if err := bystander.Ping(t.Context()); err != nil {
		t.Errorf("a bystander was ended: %v", err)
	}
}

// A drain reports its duration and the number of ended sessions.
func TestADrainIsReported(t *testing.T) {
	t.Parallel()
	type drain struct {
		took     time.Duration
		sessions int
	}
	drains := make(chan drain, 8)
	w := setup(t, pgfence.WithDrained(func(took time.Duration, sessions int) { drains <- drain{took, sessions} }))
	f := w.fence
	paused(t, w, pgx.ReadCommitted, w.acquire(t, orders, 34))
	seal := bytes.Repeat([]byte{1}, 32)
	if err := f.Arm(t.Context(), fence.Arming{Resource: orders, Token: 35, SealHash: seal, Holder: "test"}); err != nil {
		t.Fatal(err)
	}
	if len(drains) != 1 {
		t.Fatalf("%d drains were reported; want 1", len(drains))
	}
	if d := <-drains; d.sessions != 1 || d.took < 150*time.Millisecond {
		t.Errorf("%+v; want one session, ended after the grace", d)
	}
	if err := f.Arm(t.Context(), fence.Arming{Resource: orders, Token: 36, SealHash: bytes.Repeat([]byte{2}, 32), Holder: "test"}); err != nil {
		t.Fatal(err)
	}
	if len(drains) != 0 {
		t.Errorf("nobody was in the way, and a drain was reported: %+v", <-drains)
	}
}

// A raise that nobody else sees yet keeps no writer out.
func TestADrainRefusesARaiseOfItsOwnTransaction(t *testing.T) {
	t.Parallel()
	for name, around := range map[string][2]string{"": {}, "in a savepoint": {"SAVEPOINT s"}, "in a savepoint that was released": {"SAVEPOINT s", "RELEASE s"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.acquire(t, orders, 34)
			conn, hash := connect(t, w.pg.URL), fence.NewSeal().Hash()
			for _, sql := range []string{"BEGIN", around[0], fmt.Sprintf(`SELECT fence.raise('%s', 35, '\x%x', '')`, orders, hash), around[1]} {
				if _, err := conn.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			_, err := conn.Exec(t.Context(), `SELECT fence.drain($1, 35, $2)`, orders, hash)
			wantCode(t, err, "25000")
		})
	}
}

// A session's own locks are never in its way, so a drain looks for them, whether a write or pg_advisory_lock_shared took them.
func TestADrainNamesItsOwnSession(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]string{"a write": `INSERT INTO work (token) VALUES (34)`, "a lock of the session": `SELECT pg_advisory_lock_shared(fence.key($1, 34, $2))`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			g := w.acquire(t, orders, 34)
			conn := connect(t, w.pg.URL)
			tx := begin(t, conn, pgx.ReadCommitted, g)
			var args []any
			if strings.Contains(take, "$1") {
				args = []any{orders, g.Seal.Hash()}
			}
			if _, err := tx.Exec(t.Context(), take, args...); err != nil {
				t.Fatal(err)
			}
			hash := fence.NewSeal().Hash()
			w.exec(t, `SELECT fence.raise($1, 35, $2, '')`, orders, hash)
			_, err := tx.Exec(t.Context(), `SELECT fence.drain($1, 35, $2)`, orders, hash)
			wantCode(t, err, "ZF005")
			if want := fmt.Sprintf("process %d, which is this session", conn.PgConn().PID()); !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		})
	}
}
