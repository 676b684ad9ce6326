package pgfence_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence/pgfence"
)

// What fn committed by SQL is not reported as refused, although fn failed in the transaction that it began then.
func TestInTxSaysThatItsFunctionCommittedAlsoWhenItFailsInAnotherTransaction(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	cause := errors.New("cause")
	for text, ended := range map[string]bool{"COMMIT AND CHAIN": true, "COMMIT; BEGIN": true, "SAVEPOINT a": false} {
		ctx, cancel := context.WithCancel(t.Context())
		err := pgfence.InTx(ctx, w.writer, g, func(tx pgx.Tx) error {
			defer cancel()
			if err := write(ctx, tx, 34); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, text); err != nil {
				return err
			}
			return cause
		})
		if !errors.Is(err, cause) || errors.Is(err, pgfence.ErrTxEnded) != ended {
			t.Errorf("%s: %v", text, err)
		}
	}
}
