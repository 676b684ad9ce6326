package pgfence_test

import (
	"errors"
	"testing"

	crdbpgx "github.com/cockroachdb/cockroach-go/v2/crdb/crdbpgxv5" // a widely used retry loop; no CockroachDB
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// raceLost commits two changes of others: the row that the transaction is about to change, and a newer token.
func (w world) raceLost(t *testing.T, newer fence.Token) {
	t.Helper()
	w.exec(t, `UPDATE unguarded SET n = n + 1`)
	w.exec(t, `SELECT fence.raise($1, $2, $3, 'next')`, orders, newer, fence.NewSeal().Hash())
}

// An error with 40001 is retried. The retry sees the newer token and its refusal is permanent, so the loop ends.
func TestARetryAfterASerializationFailureIsRefusedAsStale(t *testing.T) {
	t.Parallel()
	const lateUpdate = `UPDATE unguarded SET n = n + 1`
	loops := map[string]func(w world, opts pgx.TxOptions, g fence.Grant, fn func(pgx.Tx) error) error{
		// It goes back to a savepoint and keeps the snapshot.
		"crdbpgx": func(w world, opts pgx.TxOptions, g fence.Grant, fn func(pgx.Tx) error) error {
			return crdbpgx.ExecuteTx(t.Context(), w.writer, opts, func(tx pgx.Tx) error {
				if err := pgfence.Use(t.Context(), tx, g); err != nil {
					return err
				}
				return fn(tx)
			})
		},
		// It begins a new transaction.
		"InTx": func(w world, opts pgx.TxOptions, g fence.Grant, fn func(pgx.Tx) error) error {
			for {
				err := pgfence.InTxWith(t.Context(), w.writer, opts, g, fn)
				var pg *pgconn.PgError
				if !errors.As(err, &pg) || pg.Code != "40001" {
					return err
				}
			}
		},
	}
	for name, loop := range loops {
		for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
			t.Run(name+"/"+string(level), func(t *testing.T) {
				t.Parallel()
				w := setup(t)
				w.exec(t, `CREATE TABLE unguarded AS SELECT 1 AS n; GRANT ALL ON unguarded TO PUBLIC`)
				g := w.acquire(t, orders, 34)
				tries, failed := 0, 0
				err := loop(w, pgx.TxOptions{IsoLevel: level}, g, func(tx pgx.Tx) error {
					if tries++; tries > 1 {
						t.Error("a retry got as far as its statements")
						return errors.New("endless")
					}
					w.raceLost(t, 35)
					_, err := tx.Exec(t.Context(), lateUpdate)
					if refusalOf(t, err).Code == "40001" {
						failed++
					}
					return err
				})
				if !errors.Is(pgfence.Translate(err), fence.ErrStale) || tries != 1 || failed != 1 {
					t.Errorf("%v after %d tries, of which %d failed to serialize", err, tries, failed)
				}
			})
		}
	}

	// The loop does retry what can succeed.
	w := setup(t)
	w.exec(t, `CREATE TABLE unguarded AS SELECT 1 AS n; GRANT ALL ON unguarded TO PUBLIC`)
	g := w.acquire(t, orders, 34)
	tries := 0
	err := loops["crdbpgx"](w, pgx.TxOptions{}, g, func(tx pgx.Tx) error {
		if tries++; tries == 1 {
			return &pgconn.PgError{Code: "40001", Message: "could not serialize access"}
		}
		return write(t.Context(), tx, g.Token)
	})
	if err != nil || tries != 2 || rows(t, w) != 1 {
		t.Errorf("%v after %d tries, %d rows", err, tries, rows(t, w))
	}
}
