package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/sqlfence"
)

// Whatever a savepoint reports as failed is not committed, even if its context has ended by then.
func TestAFailedSavepointIsRolledBackAlsoWhenItsContextHasEnded(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		g := w.acquire(t, orders, 1)
		boom := errors.New("boom")
		for name, want := range map[string]error{"fails": boom, "succeeds": context.Canceled} {
			err := sqlfence.InTx(t.Context(), w.db, g, func(tx *sql.Tx) error {
				ctx, cancel := context.WithCancel(t.Context())
				err := sqlfence.Savepoint(ctx, tx, func() error {
					err := write(t, tx, "work")
					cancel()
					if name == "fails" {
						err = errors.Join(err, boom)
					}
					return err
				})
				if !errors.Is(err, want) {
					t.Errorf("%s: %v", name, err)
				}
				return nil
			})
			if n := w.rows(t); err != nil || n != 0 {
				t.Errorf("%s: %v, %d rows", name, err, n)
			}
		}
	})
}

// An inner savepoint, however it ends, is gone before the outer one rolls back.
func TestAnOuterSavepointRollsBackWhateverBecameOfAnInnerOne(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		g := w.acquire(t, orders, 1)
		boom := errors.New("boom")
		for name, inner := range map[string]func(tx *sql.Tx) error{
			"a swallowed error": func(tx *sql.Tx) error { _, _ = tx.ExecContext(t.Context(), "SELECT 1/0"); return nil },
			"a panic":           func(*sql.Tx) error { panic(boom) },
			"an error":          func(*sql.Tx) error { return boom },
			"success":           func(tx *sql.Tx) error { return write(t, tx, "work") },
		} {
			err := sqlfence.InTx(t.Context(), w.db, g, func(tx *sql.Tx) error {
				err := sqlfence.Savepoint(t.Context(), tx, func() error {
					err := write(t, tx, "work")
					func() {
						defer func() { _ = recover() }()
						innerErr := sqlfence.Savepoint(t.Context(), tx, func() error { return inner(tx) })
						if (innerErr == nil) != (name == "success") {
							t.Errorf("%s: the inner savepoint: %v", name, innerErr)
						}
					}()
					return errors.Join(err, boom)
				})
				if !errors.Is(err, boom) {
					t.Errorf("%s: %v", name, err)
				}
				return nil
			})
			if n := w.rows(t); err != nil || n != 0 {
				t.Errorf("%s: %v, %d rows", name, err, n)
			}
		}
	})
}

// noRollbackTo fails ROLLBACK TO without sending it.
type noRollbackTo struct {
	*sql.Tx
	fails error
}

func (tx noRollbackTo) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	if query == "ROLLBACK TO fencegate" {
		return nil, tx.fails
	}
	return tx.Tx.ExecContext(ctx, query, args...)
}

// A transaction that can't return to its savepoint commits nothing.
func TestATransactionThatKeepsASavepointsChangesIsRolledBack(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		g := w.acquire(t, orders, 1)
		boom, fails := errors.New("boom"), errors.New("fails")
		err := sqlfence.InTx(t.Context(), w.db, g, func(tx *sql.Tx) error {
			err := sqlfence.Savepoint(t.Context(), noRollbackTo{tx, fails}, func() error { return errors.Join(write(t, tx, "work"), boom) })
			if !errors.Is(err, boom) || !errors.Is(err, fails) {
				t.Errorf("the savepoint: %v", err)
			}
			return nil
		})
		if n := w.rows(t); err == nil || errors.Is(err, fence.ErrUnknown) || n != 0 {
			t.Errorf("%v, %d rows", err, n)
		}
	})
}
