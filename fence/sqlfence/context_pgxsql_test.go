package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/sqlfence"
	"github.com/fencegate/fencegate/fence/sqlfence/pgxsql"
)

// connectors open a database whose connections present the grants of contexts.
var connectors = map[string]func(t testing.TB, address string) *sql.DB{
	"pgxsql": func(t testing.TB, address string) *sql.DB {
		db, err := pgxsql.Open(address)
		if err != nil {
			t.Fatal(err)
		}
		return closing(t, db)
	},
	"exec": openExec,
}

func openExec(t testing.TB, address string) *sql.DB {
	t.Helper()
	config, err := pgx.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec
	return closing(t, pgxsql.OpenDB(*config))
}

func closing(t testing.TB, db *sql.DB) *sql.DB {
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// eachConnector is each, for connectors.
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
		if _, err := tx.Exec(insert, 1); err != nil { // its context has no grant
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

// However a row is written, the context's grant decides, and nothing of it stays on the connection.
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

// Contexts with and without grants share a pool; each statement uses its own context's grant.
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
					case 1: // cancelled in the middle: the connection is closed
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

// readRows returns the error of the query, the rows or their Close.
func readRows(ctx context.Context, db interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}, query string, arg any, read func(*sql.Rows),
) (err error) {
	args := []any{arg}
	if arg == nil {
		args = nil
	}
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	read(rows)
	return rows.Err()
}
