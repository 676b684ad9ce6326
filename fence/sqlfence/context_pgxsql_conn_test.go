package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/sqlfence"
	"github.com/fencegate/fencegate/fence/sqlfence/pgxsql"
	"github.com/fencegate/fencegate/internal/pooler/poolertest"
)

// A statement can't run under another grant than its transaction, and its text can't end the transaction.
func TestAGrantIsThatOfAWholeTransaction(t *testing.T) {
	eachConnector(t, func(t *testing.T, w world) {
		w.db.SetMaxOpenConns(1)
		ctx := sqlfence.WithGrant(t.Context(), w.acquire(t, orders, 1))
		other := sqlfence.WithGrant(t.Context(), w.acquire(t, users, 1))
		for _, begun := range []context.Context{ctx, t.Context()} {
			tx, err := w.db.BeginTx(begun, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := exec(other, tx, insert, 1); !errors.Is(err, fence.ErrInvalid) {
				t.Errorf("another grant than the transaction's: %v", err)
			}
			if err := exec(sqlfence.WithGrant(ctx), tx, `SELECT 1`); err != nil {
				t.Errorf("no grant in the context: %v", err)
			}
			_ = tx.Rollback()
		}
		if err := sqlfence.InTx(ctx, w.db, sqlfence.Grants(other)[0], func(*sql.Tx) error { return nil }); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("InTx under another grant than its context's: %v", err)
		}
		tx, err := w.db.BeginTx(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, query := range []string{"COMMIT", " -- x\n rollback", "/* a /* b */ */ END", "abort", "BEGIN", "start transaction", "prepare transaction 'x'", "ROLLBACK AND CHAIN"} {
			if err := exec(ctx, tx, query); !errors.Is(err, fence.ErrInvalid) {
				t.Errorf("%s in a transaction: %v", query, err)
			}
		}
		const row = `INSERT INTO work VALUES (1)`
		for _, query := range []string{"SAVEPOINT a", row, "ROLLBACK TRANSACTION TO SAVEPOINT a", row, "ROLLBACK TO a", "RELEASE a", row} {
			if err := exec(ctx, tx, query); err != nil {
				t.Errorf("%s: %v", query, err)
			}
		}
		if err := tx.Commit(); err != nil || w.rows(t) != 1 {
			t.Errorf("%v, %d rows", err, w.rows(t))
		}
		if err := exec(ctx, w.db, "BEGIN"); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("BEGIN under a grant: %v", err)
		}
	})
}

// Under a grant a text is one statement, with arguments or without: a text whose statements end the transaction writes
// nothing, however it is sent.
func TestUnderAGrantATextIsOneStatement(t *testing.T) {
	eachConnector(t, func(t *testing.T, w world) {
		ctx := sqlfence.WithGrant(t.Context(), w.acquire(t, orders, 1))
		const row = `INSERT INTO work VALUES (1)`
		texts := []string{row + `; ROLLBACK`, row + `;COMMIT; ` + row, `;; COMMIT AND CHAIN; ` + row, `SET standard_conforming_strings = off; ` + row, row + `; ` + row}
		for name, args := range map[string][]any{"": nil, "rewritten": {pgx.NamedArgs{}}, "exec": {pgx.QueryExecModeExec}, "simple": {pgx.QueryExecModeSimpleProtocol}} {
			for _, text := range texts {
				if exec(ctx, w.db, text, args...) == nil {
					t.Errorf("%s %s: it is executed", name, text)
				}
				tx, err := w.db.BeginTx(ctx, nil)
				if err != nil {
					t.Fatal(err)
				}
				refused := exec(ctx, tx, text, args...)
				if err := tx.Commit(); refused == nil || err == nil && !errors.Is(refused, fence.ErrInvalid) || errors.Is(err, fence.ErrUnknown) {
					t.Errorf("%s %s, in a transaction: %v, %v", name, text, refused, err)
				}
				if err := w.db.QueryRowContext(ctx, text, args...).Scan(new(any)); err == nil || errors.Is(err, sql.ErrNoRows) {
					t.Errorf("%s %s: it is queried", name, text)
				}
			}
		}
		if n := w.rows(t); n != 0 {
			t.Errorf("%d rows", n)
		}
		if err := exec(ctx, w.db, row+`;`); err != nil || w.rows(t) != 1 {
			t.Errorf("one statement: %v", err)
		}
	})
}

// A transaction that is ended below the pool is not continued, and not reported as committed.
func TestATransactionEndedBelowThePool(t *testing.T) {
	eachConnector(t, func(t *testing.T, w world) {
		ctx := sqlfence.WithGrant(t.Context(), w.acquire(t, orders, 1))
		for _, end := range []string{"COMMIT", "COMMIT AND CHAIN"} {
			conn, err := w.db.Conn(ctx)
			if err != nil {
				t.Fatal(err)
			}
			tx, err := conn.BeginTx(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			_ = conn.Raw(func(raw any) error { _, err := rawConn(raw).Exec(ctx, end); return err })
			if err := exec(ctx, tx, insert, 1); err == nil {
				t.Errorf("%s: a write goes on", end)
			}
			if err := tx.Commit(); err == nil || errors.Is(err, fence.ErrUnknown) {
				t.Errorf("%s: %v", end, err)
			}
			_ = conn.Close()
		}
		if n := w.rows(t); n != 0 {
			t.Errorf("%d rows", n)
		}
	})
}

// A method that pgx adds to its connection may be one by which database/sql runs statements past this pool's.
func TestTheMethodsOfPgxsConnectionAreKnown(t *testing.T) {
	t.Parallel()
	var names []string
	for m := range reflect.TypeFor[*stdlib.Conn]().Methods() {
		names = append(names, m.Name)
	}
	want := "Begin BeginTx CheckNamedValue Close Conn ExecContext Ping Prepare PrepareContext QueryContext ResetSession"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("%s; known are %s", got, want)
	}
}

// The simple protocol would write seals into statements.
func TestTheSimpleProtocolIsRefused(t *testing.T) {
	t.Parallel()
	db, err := pgxsql.Open("postgres://nobody@127.0.0.1:1/none?default_query_exec_mode=simple_protocol")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.PingContext(t.Context()); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}

// Behind a pooler in transaction mode two clients share one session: a grant is presented in each transaction, and
// nothing of it reaches the other client.
func TestAGrantIsPresentedBehindAPooler(t *testing.T) {
	t.Parallel()
	w := newWorld(t, connectors["exec"])
	old, b := w.acquire(t, orders, 1), w.acquire(t, users, 1)
	a := w.acquire(t, orders, 2)
	pooler := poolertest.InTransactionMode(t, w.pg.WriterURL, 1)
	one, other := openExec(t, pooler), openExec(t, pooler)
	for _, name := range []string{"a statement", "without arguments", "a row", "rows", "a transaction", "InTx", "a connection"} {
		for _, c := range []struct {
			grants []fence.Grant
			want   error
		}{{[]fence.Grant{a}, nil}, {[]fence.Grant{b, a}, nil}, {[]fence.Grant{old}, fence.ErrStale}, {nil, fence.ErrNoGrant}} {
			before := w.rows(t)
			err := ways[name](sqlfence.WithGrant(t.Context(), c.grants...), one)
			if written := w.rows(t) - before; !errors.Is(err, c.want) || (written == 1) != (c.want == nil) {
				t.Errorf("%s under %v: %v, and %d rows", name, c.grants, err, written)
			}
			var left string
			if err := other.QueryRowContext(t.Context(), presented).Scan(&left); err != nil || left != "" {
				t.Errorf("%s under %v: %q reaches another client; %v", name, c.grants, left, err)
			}
			if err := ways[name](t.Context(), other); !errors.Is(err, fence.ErrNoGrant) {
				t.Errorf("%s: another client's write: %v", name, err)
			}
		}
	}
	// While one client's transaction is open, the other one's waits for the session.
	tx, err := one.BeginTx(sqlfence.WithGrant(t.Context(), a), nil)
	if err != nil {
		t.Fatal(err)
	}
	refused := make(chan error, 1)
	go func() { refused <- exec(t.Context(), other, insert, 1) }()
	if err := errors.Join(exec(t.Context(), tx, insert, 1), tx.Commit()); err != nil {
		t.Error(err)
	}
	if err := <-refused; !errors.Is(err, fence.ErrNoGrant) {
		t.Errorf("another client's write: %v", err)
	}
}

// A statement under a grant does not commit a transaction that was begun by a statement's text.
func TestATransactionBegunByTextIsLeftAlone(t *testing.T) {
	eachConnector(t, func(t *testing.T, w world) {
		ctx := sqlfence.WithGrant(t.Context(), w.acquire(t, orders, 1))
		if _, err := w.admin.Exec(t.Context(), `CREATE TABLE begun (i int); GRANT ALL ON begun TO PUBLIC`); err != nil {
			t.Fatal(err)
		}
		for _, begin := range []string{"BEGIN", "begin; SELECT 1", "/*;*/ START TRANSACTION"} {
			conn, err := w.db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(exec(t.Context(), conn, begin), exec(t.Context(), conn, `INSERT INTO begun VALUES (1)`)); err != nil {
				t.Fatal(err)
			}
			if err := exec(ctx, conn, insert, 1); !errors.Is(err, fence.ErrInvalid) {
				t.Errorf("%s: %v", begin, err)
			}
			if err := exec(t.Context(), conn, "ROLLBACK"); err != nil {
				t.Errorf("%s: %v", begin, err)
			}
			if err := exec(ctx, conn, insert, 1); err != nil {
				t.Errorf("after it: %v", err)
			}
			_ = conn.Close()
		}
		var begun int
		if err := w.admin.QueryRow(t.Context(), `SELECT count(*) FROM begun`).Scan(&begun); err != nil || begun > 0 {
			t.Errorf("%d rows were committed by somebody else: %v", begun, err)
		}
	})
}

// A session setting, made by a statement or below the connector, does not reach the next user of the connection.
func TestASessionsSettingEndsWithItsUser(t *testing.T) {
	eachConnector(t, func(t *testing.T, w world) {
		w.db.SetMaxOpenConns(1)
		g := w.acquire(t, orders, 1)
		for name, set := range map[string]func(conn *sql.Conn) error{
			"SET": func(conn *sql.Conn) error { return exec(t.Context(), conn, `SET "fence".token = '`+g.Presented()+`'`) },
			"set_config": func(conn *sql.Conn) error {
				return exec(t.Context(), conn, `SELECT set_config('FENCE.grants', 'x=1', false)`)
			},
			"Raw": func(conn *sql.Conn) error {
				return conn.Raw(func(raw any) error {
					_, err := rawConn(raw).Exec(t.Context(), `SELECT set_config('fence.' || 'token', 'x', false)`)
					return err
				})
			},
		} {
			conn, err := w.db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := set(conn); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			_ = conn.Close()
			var left string
			if err := w.db.QueryRowContext(t.Context(), presented).Scan(&left); err != nil || left != "" {
				t.Errorf("%s: %q stays; %v", name, left, err)
			}
		}
	})
}

func TestAConnectionWithAGrantOfItsOwnIsNotOpened(t *testing.T) {
	eachConnector(t, func(t *testing.T, w world) {
		g := w.acquire(t, orders, 1)
		if _, err := w.admin.Exec(t.Context(), fmt.Sprintf(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %%I SET fence.token = %%L', current_database(), '%s'); END $$`,
			g.Presented())); err != nil {
			t.Fatal(err)
		}
		err := exec(t.Context(), w.db, `SELECT 1`)
		if !errors.Is(err, fence.ErrInvalid) || strings.Contains(err.Error(), g.Seal.Reveal()) {
			t.Errorf("got %v", err)
		}
	})
}

// Small results are returned after the COMMIT of their statement, large ones before it.
func TestRowsOfAStatementAndItsCommit(t *testing.T) {
	eachConnector(t, func(t *testing.T, w world) {
		ctx := sqlfence.WithGrant(t.Context(), w.acquire(t, orders, 1))
		if _, err := w.admin.Exec(t.Context(), `ALTER TABLE work ADD CONSTRAINT one UNIQUE (token) DEFERRABLE INITIALLY DEFERRED`); err != nil {
			t.Fatal(err)
		}
		const small, large = `INSERT INTO work SELECT 1 FROM generate_series(1, $1) RETURNING token`,
			`INSERT INTO work SELECT 1 FROM generate_series(1, $1) RETURNING token, repeat('x', 1000)`
		// database/sql closes the rows of a QueryRow, and ignores the error of Close if the context has ended.
		var token int
		if err := w.db.QueryRowContext(ctx, small, 2).Scan(&token); err == nil {
			t.Error("the error of a failed COMMIT comes with the rows")
		}
		if err := readRows(ctx, w.db, small, 2, func(*sql.Rows) { t.Error("the error of a failed COMMIT comes after the rows") }); err == nil {
			t.Error("a failed COMMIT returns no error")
		}
		for name, read := range map[string]func(*sql.Rows){
			"to the end": func(rows *sql.Rows) {
				for rows.Next() {
					continue
				}
			},
			"one":  func(rows *sql.Rows) { rows.Next() },
			"none": func(*sql.Rows) {},
		} {
			if err := readRows(ctx, w.db, large, 2000, read); err == nil || w.rows(t) != 0 {
				t.Errorf("%s: %v, %d rows", name, err, w.rows(t))
			}
		}
		if _, err := w.admin.Exec(t.Context(), `ALTER TABLE work DROP CONSTRAINT one`); err != nil {
			t.Fatal(err)
		}
		n := 0
		err := readRows(ctx, w.db, large, 2000, func(rows *sql.Rows) {
			for rows.Next() {
				n++
			}
		})
		if err != nil || n != 2000 || w.rows(t) != 2000 {
			t.Errorf("%v, %d of %d rows", err, n, w.rows(t))
		}
	})
}

// A COMMIT whose answer is lost is unknown and can be resolved; the pool does not run its statement again.
func TestALostCommitUnderAContextsGrant(t *testing.T) {
	t.Parallel()
	for name, open := range connectors {
		for _, arrives := range []bool{true, false} {
			for _, way := range []string{"a statement", "a row", "prepared", "a transaction"} {
				t.Run(fmt.Sprintf("%s/%s/%t", name, way, arrives), func(t *testing.T) {
					t.Parallel()
					var p proxy
					w := newWorld(t, func(t testing.TB, address string) *sql.DB { return open(t, through(t, &p, address)) })
					ctx, cancel := context.WithTimeout(sqlfence.WithGrant(t.Context(), w.acquire(t, orders, 1)), time.Minute)
					defer cancel()
					p.atCommit(arrives)
					err := ways[way](ctx, w.db)
					var unknown *fence.UnknownError
					if !errors.As(err, &unknown) || !errors.Is(err, fence.ErrUnknown) || unknown.XID == "" {
						t.Fatalf("got %v", err)
					}
					err = sqlfence.Outcome(ctx, w.db, err)
					if (err == nil) != arrives || !arrives && !errors.Is(err, fence.ErrNotCommitted) {
						t.Errorf("it became %v", err)
					}
					if n := w.rows(t); (n == 1) != arrives || n > 1 {
						t.Errorf("%d rows", n)
					}
				})
			}
		}
	}
}

// rawConn is pgx's connection in [sql.Conn.Raw].
func rawConn(raw any) *pgx.Conn { return raw.(interface{ Conn() *pgx.Conn }).Conn() }

// A transaction with a failed statement is reported neither as committed nor as unknown.
func TestAFailedTransactionIsNotCommitted(t *testing.T) {
	eachConnector(t, func(t *testing.T, w world) {
		ctx := sqlfence.WithGrant(t.Context(), w.acquire(t, orders, 1))
		for _, failing := range []string{`SELECT 1/0`, `SELECT 1/(2 - i) FROM generate_series(1, 2) i`, `INSERT INTO people VALUES (1)`} {
			tx, err := w.db.BeginTx(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := exec(ctx, tx, insert, 1); err != nil {
				t.Error(err)
			}
			_ = readRows(ctx, tx, failing, nil, func(rows *sql.Rows) {
				for rows.Next() {
					continue
				}
			})
			if err := tx.Commit(); err == nil || errors.Is(err, fence.ErrUnknown) {
				t.Errorf("after %s: %v", failing, err)
			}
		}
		if n := w.rows(t); n != 0 {
			t.Errorf("%d rows", n)
		}
	})
}

// The connector does not see an error below it. The connection still answers after COMMIT, so the outcome is known.
func TestAFailureBelowTheConnectorIsNotUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, connectors["pgxsql"])
	ctx := sqlfence.WithGrant(t.Context(), w.acquire(t, orders, 1))
	conn, err := w.db.Conn(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := exec(ctx, tx, insert, 1); err != nil {
		t.Error(err)
	}
	_ = conn.Raw(func(raw any) error {
		_, err := rawConn(raw).Exec(ctx, `SELECT 1/0`)
		return err
	})
	if err := tx.Commit(); err == nil || errors.Is(err, fence.ErrUnknown) || w.rows(t) != 0 {
		t.Errorf("%v, %d rows", err, w.rows(t))
	}
}

// The pool's prepared statement for presenting grants may be discarded.
func TestDiscardedStatementsArePreparedAnew(t *testing.T) {
	eachConnector(t, func(t *testing.T, w world) {
		ctx := sqlfence.WithGrant(t.Context(), w.acquire(t, orders, 1))
		w.db.SetMaxOpenConns(1)
		for range 2 {
			if err := exec(ctx, w.db, `INSERT INTO work VALUES (1)`); err != nil {
				t.Error(err)
			}
			if err := exec(t.Context(), w.db, `DISCARD ALL`); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A seal is always sent as a parameter, whatever the driver's settings.
func TestAContextsSealIsNeverALiteral(t *testing.T) {
	eachConnector(t, func(t *testing.T, w world) {
		a, b := w.acquire(t, orders, 1), w.acquire(t, users, 1)
		var pid int
		w.db.SetMaxOpenConns(1)
		if err := w.db.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			t.Fatal(err)
		}
		for _, grants := range [][]fence.Grant{{a}, {a, b}} {
			blocker, err := w.admin.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := blocker.Exec(t.Context(), `LOCK TABLE fence.resources IN ACCESS EXCLUSIVE MODE`); err != nil {
				t.Fatal(err)
			}
			used := make(chan error, 1)
			go func() { used <- ways["a statement"](sqlfence.WithGrant(t.Context(), grants...), w.db) }()
			text := w.blockedStatement(t, pid)
			_ = blocker.Rollback(t.Context())
			if err := <-used; err != nil {
				t.Error(err)
			}
			if !strings.Contains(text, "fence.use") || strings.Contains(text, a.Seal.Reveal()) {
				t.Errorf("the statement reads %s", text)
			}
		}
	})
}

// roundTrips of a transaction with one statement, and of one statement alone, on a connection that has run both
// before.
var roundTrips = map[string][4]int64{ // without a grant, and under one
	"pgxsql": {3, 1, 3, 3},
	"exec":   {3, 1, 3, 3},
}

func TestRoundTrips(t *testing.T) {
	t.Parallel()
	for name, open := range connectors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p proxy
			w := newWorld(t, func(t testing.TB, address string) *sql.DB { return open(t, through(t, &p, address)) })
			w.db.SetMaxOpenConns(1)
			if _, err := w.admin.Exec(t.Context(), `CREATE TABLE free (token bigint); GRANT ALL ON free TO PUBLIC`); err != nil {
				t.Fatal(err)
			}
			const insert = `INSERT INTO free VALUES ($1)`
			transaction := func(ctx context.Context) error {
				tx, err := w.db.BeginTx(ctx, nil)
				if err != nil {
					return err
				}
				return errors.Join(exec(ctx, tx, insert, 1), tx.Commit())
			}
			alone := func(ctx context.Context) error { return exec(ctx, w.db, insert, 1) }
			granted := sqlfence.WithGrant(t.Context(), w.acquire(t, orders, 1))
			var got [4]int64
			const many = 1 << 40
			// After a second of idling the pool pings, as it may on a busy machine.
			for round := 0; round < 3 || got != roundTrips[name] && round < 20; round++ {
				for i, do := range []func() error{
					func() error { return transaction(t.Context()) }, func() error { return alone(t.Context()) },
					func() error { return transaction(granted) }, func() error { return alone(granted) },
				} {
					p.requests.Store(many)
					if err := do(); err != nil {
						t.Fatal(err)
					}
					got[i] = many - p.requests.Load()
				}
			}
			if got != roundTrips[name] {
				t.Errorf("%v round trips instead of %v", got, roundTrips[name])
			}
		})
	}
}
