package pgfence_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
)

// blocked is true if $1 sessions of this database wait for others.
const blocked = `SELECT count(*) = $1 FROM pg_stat_activity
	WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0`

// snapshotTx begins a transaction whose snapshot is taken now.
func snapshotTx(t testing.TB, conn *pgx.Conn, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT count(*) FROM work`); err != nil {
		t.Fatal(err)
	}
	return tx
}

// A pattern records the highest floor at its creation, which an old snapshot does not show.
func TestPatternsChangeAtReadCommittedAlone(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.exec(t, `SELECT fence.allow_unsealed('jobs/*')`)
			for _, sql := range []string{`SELECT fence.allow_unsealed('orders/*')`, `SELECT fence.disallow_unsealed('jobs/*')`} {
				tx := snapshotTx(t, connect(t, w.pg.URL), level)
				_, err := tx.Exec(t.Context(), sql)
				wantCode(t, err, "25000")
			}
			if got := value[string](t, w, `SELECT string_agg(pattern, ' ') FROM fence.unsealed_patterns`); got != "jobs/*" {
				t.Errorf("patterns: %s", got)
			}
		})
	}
}

// A transaction that began before a pattern was removed has no more rights than others, and no lower floor.
func TestAnOldSnapshotOfAPatternRaisesNothing(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.exec(t, `SELECT fence.allow_unsealed('orders/*')`)
			without := snapshotTx(t, w.session(t), level)
			below := snapshotTx(t, w.session(t), level)
			w.exec(t, `SELECT fence.disallow_unsealed('orders/*')`)
			set(t, without, orders, "7")
			wantCode(t, write(t.Context(), without, 7), "40001")
			w.retireOrders(t, 34)
			set(t, below, orders, "7")
			wantCode(t, write(t.Context(), below, 7), "40001")
			if n := value[int](t, w, `SELECT count(*) FROM fence.resources`); n != 0 {
				t.Errorf("%d fences", n)
			}
		})
	}
}

// A transaction that raised by a pattern and one that removes the pattern wait for each other.
func TestAPatternIsTakenAwayBetweenRaises(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `SELECT fence.allow_unsealed('orders/*')`)
	outcome := make(chan error, 1)

	writer := paused(t, w, pgx.ReadCommitted, fence.Grant{Resource: orders, Token: 7})
	owner, lock := connect(t, w.pg.URL), w.taker(t)
	away, err := owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := away.Exec(t.Context(), `SELECT fence.disallow_unsealed('orders/*')`)
		outcome <- err
	}()
	w.waitFor(t, "the owner waits", blocked, 1)
	if err := writer.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-outcome; err != nil {
		t.Fatal(err)
	}

	late := begin(t, w.session(t), pgx.ReadCommitted, fence.Grant{Resource: orders, Token: 8})
	go func() { outcome <- write(t.Context(), late, 8) }()
	w.waitFor(t, "the writer waits", blocked, 1)
	taken := make(chan error, 1)
	go func() {
		_, err := lock.Exec(t.Context(), take, orders, 9, nil, "")
		taken <- err
	}()
	w.waitFor(t, "both wait", blocked, 2)
	if err := away.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantCode(t, <-outcome, "ZF003")
	wantCode(t, <-taken, "22023")
	if token := value[int](t, w, `SELECT token FROM fence.resources`); token != 7 {
		t.Errorf("the fence stands at %d", token)
	}
}

// The errors of fence.take contain no name that may be a seal, and all other facts.
func TestDrainingYourOwnSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	w := setup(t)
	lock := w.taker(t)
	hash := fence.NewSeal().Hash()
	for name, c := range map[string]struct {
		resource    any
		token, hash any
		code, says  string
	}{
		"no fence":      {"jobs/1", 5, hash, "ZF001", `"jobs/1" was superseded while it was taken: the fence is gone`},
		"a seal":        {sealA, 5, hash, "ZF001", `token 5 for "[seal]"`},
		"a grant":       {"34." + sealA, 5, hash, "22023", "reads as a token with its seal"},
		"no name":       {nil, 5, hash, "22023", "resource is empty"},
		"no token":      {"jobs/1", nil, hash, "22023", "token is NULL"},
		"a short hash":  {"jobs/1", 5, []byte("x"), "22023", "seal hash is not 32 bytes long"},
		"another grant": {orders, 5, hash, "ZF001", "the fence stands at 34"},
	} {
		if name == "another grant" {
			w.acquire(t, orders, 34)
		}
		_, err := lock.Exec(t.Context(), `SELECT fence.drain_own($1, $2, $3)`, c.resource, c.token, c.hash)
		refused := refusalOf(t, err)
		text := refused.Message + refused.Detail
		if refused.Code != c.code || !strings.Contains(refused.Message, c.says) || strings.Contains(text, sealA) {
			t.Errorf("%s: %s %s", name, refused.Code, refused.Message)
		}
	}
}

func TestATurnThatIsHeldShowsNoSeal(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `SELECT fence.allow_unsealed('*')`)
	w.exec(t, `INSERT INTO fence.arms (resource) VALUES ($1)`, sealA)
	tx, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM fence.arms WHERE resource = $1 FOR UPDATE`, sealA); err != nil {
		t.Fatal(err)
	}
	_, err = w.taker(t).Exec(t.Context(), take, sealA, 5, nil, "")
	wantCode(t, err, "ZF005")
	_, presented := w.session(t, "-c fence.impatient=yes").Exec(t.Context(), `SELECT fence.use($1, '5')`, sealA)
	wantCode(t, presented, "ZF005")
	for _, err := range []error{err, presented} {
		if refused := refusalOf(t, err); strings.Contains(refused.Message+refused.Detail, sealA) {
			t.Errorf("%s %s", refused.Message, refused.Detail)
		}
	}
}

func TestTakingNeedsReadCommittedAndANewSeal(t *testing.T) {
	t.Parallel()
	w := setup(t)
	lock := w.taker(t)
	hash := fence.NewSeal().Hash()
	if _, err := lock.Exec(t.Context(), take, orders, 5, hash, ""); err != nil {
		t.Fatal(err)
	}
	_, err := lock.Exec(t.Context(), take, orders, 6, hash, "")
	wantCode(t, err, "22023")
	if _, err := lock.Exec(t.Context(), `SET default_transaction_isolation = 'repeatable read'`); err != nil {
		t.Fatal(err)
	}
	_, err = lock.Exec(t.Context(), take, orders, 6, fence.NewSeal().Hash(), "")
	wantCode(t, err, "25000")
	if token := value[int](t, w, `SELECT token FROM fence.resources`); token != 5 {
		t.Errorf("the fence stands at %d", token)
	}
}
