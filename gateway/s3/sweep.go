package s3

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/gateway/blob"
)

const (
	sqlPrune     = "SELECT objects.prune_versions($1, $2)"
	sqlForget    = "SELECT objects.forget_deletions($1, $2, $3)"
	sqlCondemn   = "SELECT objects.condemn($1, $2, $3, $4)"
	sqlCondemned = "SELECT objects.condemned($1, $2, $3)"
	sqlSwept     = "SELECT objects.swept($1, $2, $3)"
	sqlClock     = "SELECT clock_timestamp()" // the database's: what its rows are compared with

	sweepBatch  = 500
	maxFailures = 500 // about how many are reported
)

// Sweep says what a sweep takes away. No age endangers a live object: what is
// too young merely stays longer, and an upload that is swept while it is under
// way is refused at its commit.
type Sweep struct {
	PendingAge    time.Duration // of uploads that were begun and never completed. Default 24h
	SupersededAge time.Duration // of versions that are no longer current: readers, replicas and restores may need them. Default 24h
	DeletionAge   time.Duration // of the records of deletions, once the fence stands above them. Default 720h
	DryRun        bool          // only count, up to 500 of each kind
}

// Swept says what a sweep did.
type Swept struct {
	Pruned    int // older versions that their buckets keep no longer
	Forgotten int // records of deletions
	Condemned int // blobs that nothing points at, now marked
	Deleted   int // blobs whose bytes were deleted, some of them once more
}

// Sweep deletes the bytes of uploads that were given up and of superseded
// versions. The row is marked and committed before its bytes go, so a crash at
// any moment loses nothing and the next sweep goes on. Bytes that the store can't
// delete stop nothing; the error joins what was said of each. Several sweeps may
// run at once.
func (s *Server) Sweep(ctx context.Context, o Sweep) (Swept, error) {
	orDefault(&o.PendingAge, 24*time.Hour)
	orDefault(&o.SupersededAge, 24*time.Hour)
	orDefault(&o.DeletionAge, 30*24*time.Hour)
	db := s.backend.db
	var total Swept
	for _, step := range []struct {
		doing, sql string
		args       []any
		count      *int
	}{
		{"let old versions go", sqlPrune, []any{sweepBatch, o.DryRun}, &total.Pruned},
		{"forget deletions", sqlForget, []any{interval(o.DeletionAge), sweepBatch, o.DryRun}, &total.Forgotten},
		{"condemn", sqlCondemn, []any{interval(o.PendingAge), interval(o.SupersededAge), sweepBatch, o.DryRun}, &total.Condemned},
	} {
		for {
			var n int
			err := db.once(ctx, func(ctx context.Context, q querier) error { return q.QueryRow(ctx, step.sql, step.args...).Scan(&n) })
			if err != nil {
				return total, fmt.Errorf("sweep: %s: %w", step.doing, err)
			}
			*step.count += n
			if n < sweepBatch || o.DryRun {
				break
			}
		}
	}
	if o.DryRun {
		return total, nil
	}
	var begun time.Time
	err := db.once(ctx, func(ctx context.Context, q querier) error { return q.QueryRow(ctx, sqlClock).Scan(&begun) })
	if err != nil {
		return total, fmt.Errorf("sweep: %w", err)
	}
	var failures []error
	for {
		n, failed, err := s.sweepBatch(ctx, o, begun)
		total.Deleted += n
		if len(failures) < maxFailures {
			failures = append(failures, failed...)
		}
		if err != nil || n+len(failed) < sweepBatch {
			return total, errors.Join(append(failures, err)...)
		}
	}
}

// sweepBatch deletes the bytes of some condemned blobs. Failed holds an error
// for each that the store would not delete; err stops the sweep.
func (s *Server) sweepBatch(ctx context.Context, o Sweep, begun time.Time) (deleted int, failed []error, err error) {
	db := s.backend.db
	var ids []pgtype.UUID
	err = db.once(ctx, func(ctx context.Context, q querier) error {
		rows, err := q.Query(ctx, sqlCondemned, interval(o.PendingAge/2), begun, sweepBatch)
		if err != nil {
			return err
		}
		ids, err = pgx.CollectRows(rows, pgx.RowTo[pgtype.UUID])
		return err
	})
	if err != nil {
		return 0, nil, fmt.Errorf("sweep: list condemned blobs: %w", err)
	}
	gone, stuck := []pgtype.UUID{}, []pgtype.UUID{}
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return 0, failed, fmt.Errorf("sweep: %w", err)
		}
		if err := s.cfg.Store.Delete(ctx, blob.ID(id.Bytes)); err != nil {
			stuck, failed = append(stuck, id), append(failed, fmt.Errorf("sweep: %w", err))
			continue
		}
		gone = append(gone, id)
	}
	if err := db.once(ctx, exec(sqlSwept, gone, stuck, interval(2*o.PendingAge))); err != nil {
		return len(gone), failed, fmt.Errorf("sweep: note what was deleted: %w", err)
	}
	return len(gone), failed, nil
}

func interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}
