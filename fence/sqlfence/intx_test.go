package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq" // a driver under test

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/sqlfence"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyMain(m, testenv.LeakOptions()...) }

const orders, users = "orders/1001", "users/7"

// drivers under test open a database. The last ones write arguments into the statement's text if they can.
var drivers = map[string]func(t testing.TB, address string) *sql.DB{
	"pgx":        openPgx(pgx.QueryExecModeCacheStatement),
	"lib/pq":     func(t testing.TB, address string) *sql.DB { return open(t, "postgres", address) },
	"pgx simple": openPgx(pgx.QueryExecModeSimpleProtocol),
}

func open(t testing.TB, driver, address string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func openPgx(mode pgx.QueryExecMode) func(t testing.TB, address string) *sql.DB {
	return func(t testing.TB, address string) *sql.DB {
		t.Helper()
		config, err := pgx.ParseConfig(address)
		if err != nil {
			t.Fatal(err)
		}
		config.DefaultQueryExecMode = mode
		db := stdlib.OpenDB(*config)
		t.Cleanup(func() { _ = db.Close() })
		return db
	}
}

// world is a database with the tables work, which needs [orders], and people, which needs [users].
type world struct {
	pg    testenv.PG
	admin *pgxpool.Pool
	db    *sql.DB // a login that is fence_writer
	fence *sqlfence.Fence
}

// each runs a test once for each driver.
func each(t *testing.T, test func(t *testing.T, w world)) {
	t.Parallel()
	for name, open := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t, open))
		})
	}
}

func newWorld(t *testing.T, open func(t testing.TB, address string) *sql.DB) world {
	t.Helper()
	pg := testenv.Postgres(t)
	w := world{pg: pg, admin: pg.Pool(t), db: open(t, pg.WriterURL), fence: sqlfence.New(open(t, pg.GatewayURL))}
	for _, sql := range []string{
		`CREATE TABLE work (token bigint, note text)`, `CREATE TABLE people (token bigint)`, `GRANT ALL ON work, people TO PUBLIC`,
		`SELECT fence.protect('work', resource => 'orders/1001'), fence.protect('people', resource => 'users/7')`,
	} {
		if _, err := w.admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w world) acquire(t testing.TB, resource string, token fence.Token) fence.Grant {
	t.Helper()
	g := fence.Grant{Resource: resource, Token: token, Seal: fence.NewSeal()}
	if err := w.fence.Arm(t.Context(), fence.Arming{Resource: resource, Token: token, SealHash: g.Seal.Hash(), Holder: "test"}); err != nil {
		t.Fatal(err)
	}
	return g
}

func (w world) rows(t testing.TB) (n int) {
	t.Helper()
	if err := w.admin.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM work) + (SELECT count(*) FROM people)`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func write(t testing.TB, tx sqlfence.Tx, table string) error {
	t.Helper()
	_, err := tx.ExecContext(t.Context(), `INSERT INTO `+table+` (token) VALUES ($1)`, 1)
	return err
}

func TestInTxWritesUnderItsGrants(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		a, b := w.acquire(t, orders, 1), w.acquire(t, users, 1)
		conn, err := w.db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for _, db := range []sqlfence.Beginner{w.db, conn} {
			if err := sqlfence.InTx(t.Context(), db, a, func(tx *sql.Tx) error { return write(t, tx, "work") }); err != nil {
				t.Error(err)
			}
			for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
				opts := sqlfence.TxOptions{TxOptions: sql.TxOptions{Isolation: level}}
				err := sqlfence.InTxAll(t.Context(), db, opts, []fence.Grant{b, a}, func(tx *sql.Tx) error {
					return errors.Join(write(t, tx, "work"), write(t, tx, "people"), sqlfence.Check(t.Context(), tx))
				})
				if err != nil {
					t.Errorf("%v: %v", level, err)
				}
			}
		}
		if n := w.rows(t); n != 2*(1+3*2) {
			t.Errorf("%d rows", n)
		}
	})
}

func TestWhatIsRefusedWritesNothing(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		old, b := w.acquire(t, orders, 1), w.acquire(t, users, 1)
		a := w.acquire(t, orders, 2)
		forged := fence.Grant{Resource: orders, Token: 2, Seal: fence.NewSeal()}
		boom := errors.New("boom")
		for name, c := range map[string]struct {
			grants []fence.Grant
			fn     func(tx *sql.Tx) error
			want   error
		}{
			"stale":           {[]fence.Grant{old}, nil, fence.ErrStale},
			"one of two":      {[]fence.Grant{b, old}, nil, fence.ErrStale},
			"forged":          {[]fence.Grant{forged}, nil, fence.ErrNeverIssued},
			"none":            {nil, nil, fence.ErrNoGrant},
			"malformed":       {[]fence.Grant{{Resource: "x*", Token: 1}}, nil, fence.ErrInvalid},
			"twice":           {[]fence.Grant{a, a}, nil, fence.ErrInvalid},
			"another's table": {[]fence.Grant{b}, func(tx *sql.Tx) error { return write(t, tx, "work") }, fence.ErrWrongResource},
			"fn's error":      {[]fence.Grant{a}, func(*sql.Tx) error { return boom }, boom},
			"fn commits":      {[]fence.Grant{a}, func(tx *sql.Tx) error { _, err := tx.ExecContext(t.Context(), "ROLLBACK"); return err }, sqlfence.ErrTxEnded},
			"fn rolls back":   {[]fence.Grant{a}, func(tx *sql.Tx) error { return tx.Rollback() }, sqlfence.ErrTxEnded},
		} {
			err := sqlfence.InTxAll(t.Context(), w.db, sqlfence.TxOptions{}, c.grants, func(tx *sql.Tx) error {
				if c.fn == nil {
					t.Errorf("%s: fn ran", name)
					return nil
				}
				if c.grants[0] == a {
					if err := write(t, tx, "work"); err != nil {
						return err
					}
				}
				return c.fn(tx)
			})
			if !errors.Is(err, c.want) || errors.Is(err, fence.ErrUnknown) {
				t.Errorf("%s: %v", name, err)
			}
			for _, g := range c.grants {
				if !g.Seal.IsZero() && strings.Contains(err.Error(), g.Seal.Reveal()) {
					t.Errorf("%s: the seal shows in %v", name, err)
				}
			}
		}
		swallowed := sqlfence.InTx(t.Context(), w.db, a, func(tx *sql.Tx) error { _ = write(t, tx, "people"); return nil })
		if swallowed == nil || errors.Is(swallowed, fence.ErrUnknown) {
			t.Errorf("a swallowed refusal: %v", swallowed)
		}
		if n := w.rows(t); n != 0 {
			t.Errorf("%d rows", n)
		}
	})
}

func TestRefusalsCarryTheirFacts(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		old := w.acquire(t, orders, 7)
		w.acquire(t, orders, 8)
		err := sqlfence.InTx(t.Context(), w.db, old, func(*sql.Tx) error { return nil })
		if stale, ok := errors.AsType[*fence.StaleError](err); !ok || *stale != (fence.StaleError{Resource: orders, Presented: 7, Recorded: 8}) {
			t.Errorf("got %+v of %v", stale, err)
		}
		_, err = w.db.ExecContext(t.Context(), `INSERT INTO people VALUES (1)`)
		if none, ok := errors.AsType[*fence.NoGrantError](sqlfence.Translate(err)); !ok || none.Needed != users {
			t.Errorf("got %+v of %v", none, err)
		}
		if other := errors.New("other"); sqlfence.Translate(nil) != nil || !errors.Is(sqlfence.Translate(other), other) {
			t.Error("another error was changed")
		}
	})
}

// The seal is always sent as a parameter, whatever the driver's settings, because a statement's text is logged and
// shown.
func TestTheSealIsNeverALiteral(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		a, b := w.acquire(t, orders, 1), w.acquire(t, users, 1)
		for _, grants := range [][]fence.Grant{{a}, {a, b}} {
			tx, err := w.db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			var pid int
			if err := tx.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
				t.Fatal(err)
			}
			// The check waits in its statement, whose text is visible during the wait.
			const lock = `LOCK TABLE fence.resources IN ACCESS EXCLUSIVE MODE`
			blocker, err := w.admin.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = blocker.Rollback(context.WithoutCancel(t.Context())) }() // before the pool is closed
			if _, err := blocker.Exec(t.Context(), lock); err != nil {
				t.Fatal(err)
			}
			used := make(chan error, 1)
			go func() { used <- sqlfence.Use(t.Context(), tx, grants...) }()
			text := w.blockedStatement(t, pid)
			_ = blocker.Rollback(t.Context())
			if err := <-used; err != nil {
				t.Error(err)
			}
			if !strings.Contains(text, "fence.use") || strings.Contains(text, a.Seal.Reveal()) {
				t.Errorf("the statement reads %s", text)
			}
			_ = tx.Rollback()
		}
	})
}

// blockedStatement waits until a session waits for a lock, and returns what it executes.
func (w world) blockedStatement(t testing.TB, pid int) (text string) {
	t.Helper()
	testenv.Eventually(t, "a session waits for a lock", func() error {
		return w.admin.QueryRow(t.Context(), `SELECT query FROM pg_stat_activity WHERE pid = $1 AND wait_event_type = 'Lock'`, pid).Scan(&text)
	})
	return text
}

func TestArmEndsStaleTransactions(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		old := w.acquire(t, orders, 1)
		err := sqlfence.InTx(t.Context(), w.db, old, func(tx *sql.Tx) error {
			err := write(t, tx, "work")
			w.acquire(t, orders, 2)
			return err
		})
		if err == nil || errors.Is(err, fence.ErrUnknown) || w.rows(t) != 0 {
			t.Errorf("got %v and %d rows", err, w.rows(t))
		}
		low := w.fence.Arm(t.Context(), fence.Arming{Resource: orders, Token: 2, SealHash: fence.NewSeal().Hash()})
		if not, ok := errors.AsType[*fence.NotRaisedError](low); !ok || not.Recorded != 2 {
			t.Errorf("got %v", low)
		}
		if _, err := w.fence.Revoke(t.Context(), "none", ""); !errors.Is(err, fence.ErrNoFence) {
			t.Errorf("got %v", err)
		}
		token, err := w.fence.Revoke(t.Context(), orders, "operator")
		record, inspectErr := w.fence.Inspect(t.Context(), orders)
		if err != nil || inspectErr != nil || token != 3 || record.Token != 3 || record.Holder != "operator" || !record.Sealed {
			t.Errorf("%d, %v; %+v, %v", token, err, record, inspectErr)
		}
		if _, err := w.fence.Inspect(t.Context(), "none"); !errors.Is(err, fence.ErrNoFence) {
			t.Errorf("got %v", err)
		}
	})
}

func TestEndRefusesTheGrantAndNoOther(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		old, g := w.acquire(t, orders, 1), w.acquire(t, orders, 2)
		for token, want := range map[fence.Token]error{1: fence.ErrStale, 2: fence.ErrNeverIssued} { // superseded, or with another seal
			if err := w.fence.End(t.Context(), fence.Ending{Resource: orders, Token: token, SealHash: old.Seal.Hash()}); !errors.Is(err, want) {
				t.Errorf("token %d: %v", token, err)
			}
		}
		insert := func(tx *sql.Tx) error { return write(t, tx, "work") }
		if err := sqlfence.InTx(t.Context(), w.db, g, insert); err != nil {
			t.Error(err)
		}
		for _, hash := range [][]byte{g.Seal.Hash(), nil} {
			if err := w.fence.End(t.Context(), fence.Ending{Resource: orders, Token: 2, SealHash: hash}); err != nil {
				t.Error(err)
			}
		}
		err := sqlfence.InTx(t.Context(), w.db, g, insert)
		if stale, ok := errors.AsType[*fence.StaleError](err); !ok || !stale.Ended || w.rows(t) != 1 {
			t.Errorf("ended: %v, %d rows", err, w.rows(t))
		}
		if record, err := w.fence.Inspect(t.Context(), orders); err != nil || record.EndedAt == nil {
			t.Errorf("%+v, %v", record, err)
		}
	})
}

// through starts a proxy in front of an address.
func through(t testing.TB, p *proxy, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = p.listen(t, u.Host)
	q := u.Query()
	q.Set("sslmode", "disable")
	u.RawQuery = q.Encode()
	return u.String()
}

func TestALostCommitIsUnknownAndCanBeFound(t *testing.T) {
	t.Parallel()
	for name, open := range drivers {
		for _, arrives := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				pg := testenv.Postgres(t)
				w := world{pg: pg, admin: pg.Pool(t), fence: sqlfence.New(open(t, pg.GatewayURL)), db: open(t, pg.WriterURL)}
				if _, err := w.admin.Exec(t.Context(), `CREATE TABLE work (token bigint); CREATE TABLE people (); GRANT ALL ON work TO PUBLIC`); err != nil {
					t.Fatal(err)
				}
				var p proxy
				db := open(t, through(t, &p, pg.WriterURL))
				g := w.acquire(t, orders, 1)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				lose := func(opts sqlfence.TxOptions) error {
					return sqlfence.InTxAll(ctx, db, opts, []fence.Grant{g}, func(tx *sql.Tx) error {
						defer p.atCommit(arrives)
						return write(t, tx, "work")
					})
				}
				err := lose(sqlfence.TxOptions{})
				if unknown, ok := errors.AsType[*fence.UnknownError](err); !ok || !errors.Is(err, fence.ErrUnknown) || unknown.XID == "" {
					t.Fatalf("got %v", err)
				}
				for what, err := range map[string]error{"asked": sqlfence.Outcome(ctx, w.db, err), "by itself": lose(sqlfence.TxOptions{Resolve: time.Minute})} {
					if (err == nil) != arrives || !arrives && !errors.Is(err, fence.ErrNotCommitted) {
						t.Errorf("%s: %v", what, err)
					}
				}
				if n := w.rows(t); (n == 2) != arrives || (n == 0) == arrives {
					t.Errorf("%d rows", n)
				}
			})
		}
	}
}
