package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/sqlfence"
)

// connectors open a database whose connections present the grants of contexts.
var connectors = map[string]func(t testing.TB, address string) *sql.DB{
	"pgx": func(t testing.TB, address string) *sql.DB {
		return connectPgx(t, address, pgx.QueryExecModeCacheStatement)
	},
	"simple": func(t testing.TB, address string) *sql.DB {
		return connectPgx(t, address, pgx.QueryExecModeSimpleProtocol)
	},
	"pq": func(t testing.TB, address string) *sql.DB {
		inner, err := pq.NewConnector(address)
		if err != nil {
			t.Fatal(err)
		}
		return closing(t, sqlfence.OpenDB(inner))
	},
	"named": func(t testing.TB, address string) *sql.DB {
		db, err := sqlfence.Open("pgx", address)
		if err != nil {
			t.Fatal(err)
		}
		return closing(t, db)
	},
}

func connectPgx(t testing.TB, address string, mode pgx.QueryExecMode) *sql.DB {
	t.Helper()
	config, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = mode
	return closing(t, sqlfence.OpenDB(stdlib.GetConnector(*config)))
}

func closing(t testing.TB, db *sql.DB) *sql.DB {
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// eachConnector is each for connectors.
func eachConnector(t *testing.T, test func(t *testing.T, w world)) {
	t.Parallel()
	for name, open := range connectors {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newWorld(t, open))
		})
	}
}

func exec(ctx context.Context, db interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, query string, args ...any,
) error {
	_, err := db.ExecContext(ctx, query, args...)
	return err
}

const (
	insert    = `INSERT INTO work (token) VALUES ($1)`
	returning = `INSERT INTO work (token) VALUES ($1) RETURNING token`
	presented = `SELECT concat(current_setting('fence.resource', true), current_setting('fence.token', true), current_setting('fence.grants', true),
		(SELECT string_agg(mode, ' ') FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()))`
)

// ways are the ways to write a row with a context.
var ways = map[string]func(ctx context.Context, db *sql.DB) error{
	"a statement":       func(ctx context.Context, db *sql.DB) error { return exec(ctx, db, insert, 1) },
	"without arguments": func(ctx context.Context, db *sql.DB) error { return exec(ctx, db, `INSERT INTO work VALUES (1)`) },
	"a row": func(ctx context.Context, db *sql.DB) error {
		var token int
		return db.QueryRowContext(ctx, returning, 1).Scan(&token)
	},
	"rows": func(ctx context.Context, db *sql.DB) error {
		rows, err := db.QueryContext(ctx, returning, 1)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			if types, err := rows.ColumnTypes(); err != nil || types[0].DatabaseTypeName() != "INT8" {
				return fmt.Errorf("%v, %w", types[0].DatabaseTypeName(), err)
			}
		}
		return rows.Err()
	},
	"prepared": func(ctx context.Context, db *sql.DB) error {
		stmt, err := db.PrepareContext(context.WithoutCancel(ctx), insert)
		if err != nil {
			return err
		}
		defer stmt.Close()
		_, err = stmt.ExecContext(ctx, 1)
		return err
	},
	"prepared, a row": func(ctx context.Context, db *sql.DB) error {
		stmt, err := db.PrepareContext(ctx, returning)
		if err != nil {
			return err
		}
		defer stmt.Close()
		var token int
		return stmt.QueryRowContext(ctx, 1).Scan(&token)
	},
	"a transaction": func(ctx context.Context, db *sql.DB) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := tx.Exec(insert, 1); err != nil { // whose context has no grant
			return err
		}
		return tx.Commit()
	},
	"serializable, prepared": func(ctx context.Context, db *sql.DB) error {
		tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		stmt, err := tx.PrepareContext(ctx, insert)
		if err != nil {
			return err
		}
		defer stmt.Close()
		if _, err := stmt.ExecContext(ctx, 1); err != nil {
			return err
		}
		return tx.Commit()
	},
	"a connection": func(ctx context.Context, db *sql.DB) error {
		conn, err := db.Conn(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		return exec(ctx, conn, insert, 1)
	},
	"InTx": func(ctx context.Context, db *sql.DB) error {
		grants := sqlfence.Grants(ctx)
		if len(grants) == 0 {
			return exec(ctx, db, insert, 1)
		}
		return sqlfence.InTxAll(ctx, db, sqlfence.TxOptions{}, grants, func(tx *sql.Tx) error { return exec(ctx, tx, insert, 1) })
	},
}

// Whatever way a row is written, the context's grant decides, and nothing of it stays on the connection.
func TestAContextsGrantIsThatOfWhatBeginsWithIt(t *testing.T) {
	eachConnector(t, func(t *testing.T, w world) {
		w.db.SetMaxOpenConns(1)
		old, b := w.acquire(t, orders, 1), w.acquire(t, users, 1)
		a := w.acquire(t, orders, 2)
		for name, write := range ways {
			for _, c := range []struct {
				grants []fence.Grant
				want   error
			}{
				{[]fence.Grant{a}, nil},
				{nil, fence.ErrNoGrant},
				{[]fence.Grant{b, a}, nil},
				{[]fence.Grant{old}, fence.ErrStale},
				{[]fence.Grant{b}, fence.ErrWrongResource},
				{[]fence.Grant{{Resource: orders, Token: 2, Seal: fence.NewSeal()}}, fence.ErrNeverIssued},
				{[]fence.Grant{{Resource: "x*", Token: 1}}, fence.ErrInvalid},
			} {
				before := w.rows(t)
				err := write(sqlfence.WithGrant(t.Context(), c.grants...), w.db)
				written := w.rows(t) - before
				if !errors.Is(err, c.want) || errors.Is(err, fence.ErrUnknown) || (written == 1) != (c.want == nil) {
					t.Errorf("%s under %v: %v, and %d rows", name, c.grants, err, written)
				}
				for _, g := range c.grants {
					if err != nil && strings.Contains(err.Error(), g.Seal.Reveal()) && !g.Seal.IsZero() {
						t.Errorf("%s: the seal shows in %v", name, err)
					}
				}
				var left string
				if err := w.db.QueryRowContext(t.Context(), presented).Scan(&left); err != nil || left != "" {
					t.Errorf("%s under %v: %q stays; %v", name, c.grants, left, err)
				}
			}
		}
	})
}

// Contexts with and without grants share a pool; each statement finds its own context's grant.
func TestGrantsDoNotMeetOnAPool(t *testing.T) {
	eachConnector(t, func(t *testing.T, w world) {
		w.db.SetMaxOpenConns(4)
		const effective = `SELECT concat(current_setting('fence.resource', true), '#', split_part(current_setting('fence.token', true), '.', 1))`
		grants := []fence.Grant{{}, w.acquire(t, orders, 11), w.acquire(t, users, 12), {}, w.acquire(t, "third", 13)}
		var all sync.WaitGroup
		for worker := range 8 {
			all.Go(func() {
				for i := range 60 {
					g := grants[(worker+i)%len(grants)]
					ctx, want := t.Context(), "#"
					if g.Token > 0 {
						ctx, want = sqlfence.WithGrant(ctx, g), g.String()
					}
					var got string
					var err error
					switch i % 4 {
					case 0:
						err = w.db.QueryRowContext(ctx, effective).Scan(&got)
					case 1: // cancelled in the middle, which costs the connection
						cancelled, cancel := context.WithCancel(ctx)
						if tx, err := w.db.BeginTx(cancelled, nil); err == nil {
							_, _ = tx.ExecContext(cancelled, `SELECT 1`)
						}
						cancel()
						err = w.db.QueryRowContext(ctx, effective).Scan(&got)
					case 2: // failed in the middle
						_, _ = w.db.ExecContext(ctx, `SELECT 1/0`)
						err = w.db.QueryRowContext(ctx, effective).Scan(&got)
					case 3:
						var tx *sql.Tx
						if tx, err = w.db.BeginTx(ctx, nil); err == nil {
							err = tx.QueryRow(effective).Scan(&got)
							err = errors.Join(err, tx.Commit())
						}
					}
					if err != nil || got != want {
						t.Errorf("%s instead of %s: %v", got, want, err)
					}
				}
			})
		}
		all.Wait()
	})
}

// A statement can't be under another grant than its transaction, nor leave the transaction by its text.
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

// What was begun by a statement's text is not committed by a statement under a grant.
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

// What a statement sets for the session, and what is set below the connector, does not reach the next user of the connection.
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
					if inner, ok := sqlfence.DriverConn(raw).(*stdlib.Conn); ok {
						_, err := inner.Conn().Exec(t.Context(), `SELECT set_config('fence.' || 'token', 'x', false)`)
						return err
					}
					return nil
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

// Small results come after the COMMIT of their statement, large ones before it.
func TestRowsOfAStatementAndItsCommit(t *testing.T) {
	eachConnector(t, func(t *testing.T, w world) {
		ctx := sqlfence.WithGrant(t.Context(), w.acquire(t, orders, 1))
		if _, err := w.admin.Exec(t.Context(), `ALTER TABLE work ADD CONSTRAINT one UNIQUE (token) DEFERRABLE INITIALLY DEFERRED`); err != nil {
			t.Fatal(err)
		}
		const small, large = `INSERT INTO work SELECT 1 FROM generate_series(1, $1) RETURNING token`,
			`INSERT INTO work SELECT 1 FROM generate_series(1, $1) RETURNING token, repeat('x', 1000)`
		// database/sql closes the rows of a QueryRow, and tells no error of that where the context has ended.
		if rows, err := w.db.QueryContext(ctx, small, 2); err == nil {
			_ = rows.Close()
			t.Error("a COMMIT that fails is told with the rows")
		}
		for name, read := range map[string]func(*sql.Rows) error{
			"to the end": func(rows *sql.Rows) error {
				for rows.Next() {
					continue
				}
				return errors.Join(rows.Err(), rows.Close())
			},
			"one":  func(rows *sql.Rows) error { rows.Next(); return rows.Close() },
			"none": func(rows *sql.Rows) error { return rows.Close() },
		} {
			rows, err := w.db.QueryContext(ctx, large, 2000)
			if err != nil {
				t.Fatal(err)
			}
			if err := read(rows); err == nil || w.rows(t) != 0 {
				t.Errorf("%s: %v, %d rows", name, err, w.rows(t))
			}
		}
		if _, err := w.admin.Exec(t.Context(), `ALTER TABLE work DROP CONSTRAINT one`); err != nil {
			t.Fatal(err)
		}
		rows, err := w.db.QueryContext(ctx, large, 2000)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for rows.Next() {
			n++
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil || n != 2000 || w.rows(t) != 2000 {
			t.Errorf("%v, %d of %d rows", err, n, w.rows(t))
		}
	})
}

// A COMMIT whose answer is lost is unknown, and can be looked up; the pool does not run its statement again.
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

// A transaction that failed on its way is not reported as committed, and not as unknown.
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
			if rows, err := tx.QueryContext(ctx, failing); err == nil {
				for rows.Next() {
					continue
				}
				_ = rows.Close()
			}
			if err := tx.Commit(); err == nil || errors.Is(err, fence.ErrUnknown) {
				t.Errorf("after %s: %v", failing, err)
			}
		}
		if n := w.rows(t); n != 0 {
			t.Errorf("%d rows", n)
		}
	})
}

// The pool's prepared statement for presenting grants may be gone.
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

// Whatever the driver was told, a seal is a parameter.
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
