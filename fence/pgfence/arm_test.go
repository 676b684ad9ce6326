package pgfence_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestArmRaisesOnlyUpwards(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	before := value[string](t, w, `SELECT r::text FROM fence.resources r`)

	if err := w.fence.Arm(t.Context(), arming(g)); err != nil {
		t.Errorf("the same grant again, as after a lost acknowledgement: %v", err)
	}
	for _, a := range []fence.Arming{
		{Resource: orders, Token: 33, SealHash: fence.NewSeal().Hash()},
		{Resource: orders, Token: 34, SealHash: fence.NewSeal().Hash()},
		{Resource: orders, Token: 34},
	} {
		err := w.fence.Arm(t.Context(), a)
		var not *fence.NotRaisedError
		if !errors.As(err, &not) || not.Recorded != 34 || not.Offered != a.Token || errors.Is(err, fence.ErrUnknown) {
			t.Errorf("token %d: %v", a.Token, err)
		}
	}
	if after := value[string](t, w, `SELECT r::text FROM fence.resources r`); after != before {
		t.Errorf("the fence changed from %s to %s", before, after)
	}
	w.acquire(t, orders, 9007199254740993)
}

func TestArmRefusesMalformedRequests(t *testing.T) {
	t.Parallel()
	w := setup(t)
	hash := fence.NewSeal().Hash()
	for _, a := range []fence.Arming{
		{Resource: "", Token: 1, SealHash: hash},
		{Resource: strings.Repeat("x", 513), Token: 1, SealHash: hash},
		{Resource: "a\nb", Token: 1, SealHash: hash},
		{Resource: "a\xff", Token: 1, SealHash: hash},
		{Resource: "a*", Token: 1, SealHash: hash},
		{Resource: "a", Token: 0, SealHash: hash},
		{Resource: "a", Token: -1, SealHash: hash},
		{Resource: "a", Token: 1, SealHash: hash[:31]},
		{Resource: "a", Token: 1, SealHash: []byte{}},
		{Resource: "a", Token: 1, SealHash: hash, Holder: strings.Repeat("h", 513)},
	} {
		if err := w.fence.Arm(t.Context(), a); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%+v: %v", a, err)
		}
		if a.Resource == "a\xff" || a.Holder != "" {
			continue // can't reach SQL, or is the client's rule
		}
		_, err := w.admin.Exec(t.Context(), `SELECT fence.raise($1, $2, $3, '')`, a.Resource, int64(a.Token), a.SealHash)
		wantCode(t, err, "22023")
	}
	if n := value[int](t, w, `SELECT count(*) FROM fence.resources`); n != 0 {
		t.Errorf("%d fences appeared", n)
	}
}

func TestASealServesOneToken(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	g.Token = 35
	err := w.fence.Arm(t.Context(), arming(g))
	wantCode(t, err, "22023")
	if errors.Is(err, fence.ErrUnknown) || value[int](t, w, `SELECT token FROM fence.resources`) != 34 {
		t.Errorf("raised with a used seal: %v", err)
	}
}

// A fence appears exactly once, however many acquirers come first.
func TestFirstArmsGoOneByOne(t *testing.T) {
	t.Parallel()
	w := setup(t)
	const n = 20
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			errs[i] = w.fence.Arm(t.Context(), fence.Arming{Resource: "new", Token: fence.Token(i + 1), SealHash: fence.NewSeal().Hash()})
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil && !errors.Is(err, fence.ErrNotRaised) {
			t.Errorf("token %d: %v", i+1, err)
		}
	}
	if got := value[int](t, w, `SELECT token FROM fence.resources WHERE resource = 'new'`); got != n || errs[n-1] != nil {
		t.Errorf("the fence stands at %d, want %d; its arm said %v", got, n, errs[n-1])
	}
}

// paused is a writer that has passed the check and not committed yet.
func paused(t testing.TB, w world, level pgx.TxIsoLevel, g fence.Grant) pgx.Tx {
	t.Helper()
	tx := begin(t, w.session(t), level, g)
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

// waitsForLock: somebody waits for an advisory lock in this database.
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

			// And the new holder can't write from a snapshot that may miss the old one's last commit.
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
	// What was drained is forgotten by the next raise, not kept for ever.
	w.acquire(t, orders, 37)
	if n := value[int](t, w, `SELECT undrained FROM fence.fences`); n != 1 {
		t.Errorf("%d keys are kept, want that of 36", n)
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

// A raise that rolled back leaves xmax behind: the slow path finds the grant current all the same.
func TestAnAbandonedRaiseLeavesTheGrantCurrent(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	tx, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT fence.raise($1, 35, NULL, '')`, orders); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if value[bool](t, w, `SELECT xmax = '0'::xid FROM fence.resources`) {
		t.Fatal("the test does not reach the slow path")
	}
	conn := w.session(t)
	for _, level := range levels {
		for range 2 {
			if err := attempt(t, conn, level, orders, g.Presented()); err != nil {
				t.Errorf("%s: %v", level, err)
			}
		}
	}
	readOnly, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		t.Fatal(err)
	}
	if err := pgfence.Use(t.Context(), readOnly, g); err != nil {
		t.Errorf("read only: %v", err)
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

func TestArmNeedsReadCommitted(t *testing.T) {
	t.Parallel()
	w := setup(t)
	f := pgfence.New(poolWith(t, w.pg.GatewayURL, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "repeatable read"
	}))
	err := f.Arm(t.Context(), fence.Arming{Resource: orders, Token: 1, SealHash: fence.NewSeal().Hash()})
	if err == nil || !strings.Contains(err.Error(), "READ COMMITTED") || errors.Is(err, fence.ErrUnknown) {
		t.Errorf("got %v", err)
	}
}

// With synchronous_commit = off an acknowledged raise would be lost in a crash.
func TestArmCommitsDurablyWhateverTheSessionChose(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for i, c := range []struct{ chosen, effective string }{
		{"off", "on"}, {"local", "on"}, {"remote_write", "on"}, {"on", "on"}, {"remote_apply", "remote_apply"},
	} {
		conn := connect(t, w.pg.GatewayURL, "-c synchronous_commit="+c.chosen)
		for _, call := range []string{
			fmt.Sprintf(`SELECT fence.raise('r', %d, NULL, '')`, i+1), `SELECT fence.revoke('r')`, `SELECT fence.raise_epoch(1)`,
		} {
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), `SELECT FROM fence.fences`); err != nil {
				t.Fatal(err)
			}
			if i == 0 && strings.Contains(call, "revoke") {
				w.exec(t, `SELECT fence.raise('r', 1, NULL, '')`)
			}
			if _, err := tx.Exec(t.Context(), call); err != nil {
				t.Fatal(err)
			}
			var effective string
			if err := tx.QueryRow(t.Context(), `SHOW synchronous_commit`).Scan(&effective); err != nil {
				t.Fatal(err)
			}
			if effective != c.effective {
				t.Errorf("%s with %s commits with %s", call, c.chosen, effective)
			}
			_ = tx.Rollback(t.Context())
		}
	}
}

func TestRevokeEndsTheHoldersRights(t *testing.T) {
	t.Parallel()
	w := setup(t)
	if _, err := w.fence.Revoke(t.Context(), orders, "admin"); !errors.Is(err, pgfence.ErrNoFence) {
		t.Errorf("nothing to revoke: %v", err)
	}
	if _, err := w.fence.Revoke(t.Context(), "", "admin"); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("malformed: %v", err)
	}
	g := w.acquire(t, orders, 34)
	tx := paused(t, w, pgx.ReadCommitted, g)
	token, err := w.fence.Revoke(t.Context(), orders, "admin")
	if err != nil || token != 35 {
		t.Fatalf("token %d, %v", token, err)
	}
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("a write in flight survived")
	}
	wantCode(t, attempt(t, w.session(t), pgx.ReadCommitted, orders, g.Presented()), "ZF001")
	record, err := w.fence.Inspect(t.Context(), orders)
	if err != nil || record.Token != 35 || !record.Sealed || record.Holder != "admin" {
		t.Errorf("%+v, %v", record, err)
	}
	w.acquire(t, orders, 36)
}

func TestInspectAndListShowNoSeal(t *testing.T) {
	t.Parallel()
	w := setup(t)
	if _, err := w.fence.Inspect(t.Context(), "none"); !errors.Is(err, pgfence.ErrNoFence) {
		t.Errorf("got %v", err)
	}
	for _, name := range []string{"a/1", "a/2", "a/ü", "a/\U0010ffff", "b/1", "a%_", `a\`} {
		w.acquire(t, name, 5)
	}
	for _, c := range []struct {
		prefix, after string
		limit         int
		want          string
	}{
		{"a/", "", 10, "a/1 a/2 a/ü a/\U0010ffff"},
		{"a/", "a/1", 2, "a/2 a/ü"},
		{"", "", 3, `a%_ a/1 a/2`},
		{"a%", "", 10, "a%_"},
		{`a\`, "", 10, `a\`},
		{"c", "", 10, ""},
	} {
		records, err := w.fence.List(t.Context(), c.prefix, c.after, c.limit)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, r := range records {
			names = append(names, r.Resource)
			if r.Token != 5 || !r.Sealed || r.Holder != "test" || time.Since(r.ArmedAt).Abs() > time.Hour {
				t.Errorf("%+v", r)
			}
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("below %q after %q: %q, want %q", c.prefix, c.after, got, c.want)
		}
	}
}

func TestEpochsOnlyRise(t *testing.T) {
	t.Parallel()
	w := setup(t)
	var mu sync.Mutex
	seen := map[int64]bool{}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			epoch, err := w.fence.RaiseEpoch(t.Context(), int64(i))
			mu.Lock()
			defer mu.Unlock()
			if err != nil || epoch <= int64(i) || seen[epoch] {
				t.Errorf("above %d: %d, %v", i, epoch, err)
			}
			seen[epoch] = true
		})
	}
	wg.Wait()
	if epoch, err := w.fence.RaiseEpoch(t.Context(), 2097150); err != nil || epoch != 2097151 {
		t.Errorf("%d, %v", epoch, err)
	}
	for _, above := range []int64{0, 2097151, 1 << 62} {
		if _, err := w.fence.RaiseEpoch(t.Context(), above); err == nil || !strings.Contains(err.Error(), "no epoch is left") {
			t.Errorf("above %d: %v", above, err)
		}
	}
}

// fence.key is written out in the guard; both must lock the same.
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
	go func() { armed <- w.fence.Arm(ctx, fence.Arming{Resource: orders, Token: 35, SealHash: bytes.Repeat([]byte{1}, 32)}) }()
	w.waitFor(t, "arm drains", waitsForLock)
	cancel()
	if err := <-armed; !errors.Is(err, context.Canceled) || !errors.Is(err, fence.ErrUnknown) {
		t.Errorf("got %v", err)
	}

	// With a deadline the drain answers before it.
	ctx, cancel = context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	w.fence = pgfence.New(testenv.PoolOf(t, w.pg.GatewayURL), pgfence.WithGrace(50*time.Millisecond))
	if err := w.fence.Arm(ctx, fence.Arming{Resource: orders, Token: 36, SealHash: fence.NewSeal().Hash()}); err != nil {
		t.Error(err)
	}
}
