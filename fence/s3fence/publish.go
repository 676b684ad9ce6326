package s3fence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/sqlfence"
)

const (
	// The IDs are one text, because drivers differ in how they send arrays.
	sqlPublish = `SELECT count(*) FROM fence.publish_all(string_to_array($1::text, ',')::uuid[])`
	sqlRemove  = `SELECT fence.unpublish($1::text, $2::text)`
	sqlStaged  = `SELECT fence.staged($1::text::uuid)`
)

// Publish makes staged uploads visible when the transaction commits, all or none. The transaction must present the
// grant that they were staged with, as with pgfence.InTx and pgfence.Use. Call it once, last, with everything to
// publish: other writers of these names wait until COMMIT.
//
// The error is [ErrPublished], [ErrGone], [ErrPrecondition], [ErrNoBucket], or a refusal by the fence. fence.ErrStale
// is also returned if the presented grant is newer than the one that an upload was staged with. An error fails the
// transaction.
func Publish(ctx context.Context, tx pgx.Tx, staged ...Staged) error {
	if tx == nil {
		return errNoTx
	}
	if len(staged) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, sqlPublish, list(staged)); err != nil {
		return fmt.Errorf("publish %s: %w", naming(staged), translate(err))
	}
	return nil
}

// PublishSQL is [Publish] for database/sql: a *sql.Tx, as in sqlfence.InTx.
func PublishSQL(ctx context.Context, tx sqlfence.Tx, staged ...Staged) error {
	if tx == nil {
		return errNoTx
	}
	if len(staged) == 0 {
		return nil
	}
	if _, err := tx.ExecContext(ctx, sqlPublish, list(staged)); err != nil {
		return fmt.Errorf("publish %s: %w", naming(staged), translate(err))
	}
	return nil
}

// Remove removes an object when the transaction commits. The transaction must present a grant of the resource that
// the key needs. Removing a missing object succeeds. Errors are as with [Publish].
func Remove(ctx context.Context, tx pgx.Tx, bucket, key string) error {
	if tx == nil {
		return errNoTx
	}
	if _, err := tx.Exec(ctx, sqlRemove, bucket, key); err != nil {
		return fmt.Errorf("remove %s/%s: %w", bucket, key, translate(err))
	}
	return nil
}

// RemoveSQL is [Remove] for database/sql.
func RemoveSQL(ctx context.Context, tx sqlfence.Tx, bucket, key string) error {
	if tx == nil {
		return errNoTx
	}
	if _, err := tx.ExecContext(ctx, sqlRemove, bucket, key); err != nil {
		return fmt.Errorf("remove %s/%s: %w", bucket, key, translate(err))
	}
	return nil
}

// Outcome finds out what happened to a transaction that published a staged upload and whose COMMIT was not answered.
// It waits for a transaction that still runs. nil: committed, with its rows. [fence.ErrNotCommitted]: not committed,
// and the upload can still be published; joined with [ErrGone], it can't. Unlike pgfence.Outcome it also works after
// a crash of PostgreSQL. The pool's sessions must run at the default isolation level, READ COMMITTED.
func Outcome(ctx context.Context, pool *pgxpool.Pool, staged Staged) error {
	var state string
	err := pool.QueryRow(ctx, sqlStaged, staged.ID).Scan(&state)
	return outcome(staged, state, err)
}

// OutcomeSQL is [Outcome] for database/sql. The grants of ctx are not presented.
func OutcomeSQL(ctx context.Context, db *sql.DB, staged Staged) error {
	var state string
	err := db.QueryRowContext(sqlfence.WithGrant(ctx), sqlStaged, staged.ID).Scan(&state)
	return outcome(staged, state, err)
}

func outcome(staged Staged, state string, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("outcome of %s: %w: %w", staged, fence.ErrUnknown, err)
	case state == "published":
		return nil
	case state == "staged":
		return fmt.Errorf("outcome of %s: %w", staged, fence.ErrNotCommitted)
	}
	return fmt.Errorf("outcome of %s: %w", staged, errors.Join(fence.ErrNotCommitted, ErrGone))
}

var errNoTx = &fence.InvalidError{Field: "transaction", Reason: "is nil"}

func list(staged []Staged) string {
	ids := make([]string, len(staged))
	for i, s := range staged {
		ids[i] = s.ID
	}
	return strings.Join(ids, ",")
}

// naming names a few of the staged uploads.
func naming(staged []Staged) string {
	if len(staged) == 1 {
		return staged[0].String()
	}
	return fmt.Sprintf("%s and %d more", staged[0], len(staged)-1)
}
