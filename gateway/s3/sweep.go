package s3

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/gateway/blob"
)

const (
	sqlCondemn   = "SELECT objects.condemn($1, $2, $3, $4)"
	sqlCondemned = "SELECT objects.condemned($1, $2)"
	sqlSwept     = "SELECT objects.swept($1, $2)"

	sweepBatch = 500
)

// Sweep says what a sweep takes away. No age endangers a live object: what is
// too young merely stays longer, and an upload that is swept while it is under
// way is refused at its commit.
type Sweep struct {
	PendingAge    time.Duration // of uploads that were begun and never completed. Default 24h
	SupersededAge time.Duration // of versions that are no longer current: readers, replicas and restores may need them. Default 24h
	DryRun        bool          // only count, up to 500 of each kind
}

// Swept says what a sweep did.
type Swept struct {
	Condemned int // blobs that nothing points at, now marked
	Deleted   int // blobs whose bytes were deleted, some of them once more
}

// Sweep deletes the bytes of uploads that were given up and of superseded
// versions. The row is marked and committed before its bytes go, so a crash at
// any moment loses nothing and the next sweep goes on. Several may run at once.
func (s *Server) Sweep(ctx context.Context, o Sweep) (Swept, error) {
	orDefault(&o.PendingAge, 24*time.Hour)
	orDefault(&o.SupersededAge, 24*time.Hour)
	db := s.backend.db
	var total Swept
	for {
		var n int
		err := db.once(ctx, func(ctx context.Context, q querier) error {
			return q.QueryRow(ctx, sqlCondemn, interval(o.PendingAge), interval(o.SupersededAge), sweepBatch, o.DryRun).Scan(&n)
		})
		if err != nil {
			return total, fmt.Errorf("sweep: condemn: %w", err)
		}
		total.Condemned += n
		if n < sweepBatch || o.DryRun {
			break
		}
	}
	for !o.DryRun {
		n, err := s.sweepBatch(ctx, o)
		total.Deleted += n
		if err != nil || n < sweepBatch {
			return total, err
		}
	}
	return total, nil
}

// sweepBatch deletes the bytes of some condemned blobs.
func (s *Server) sweepBatch(ctx context.Context, o Sweep) (int, error) {
	db := s.backend.db
	var ids []pgtype.UUID
	err := db.once(ctx, func(ctx context.Context, q querier) error {
		rows, err := q.Query(ctx, sqlCondemned, interval(o.PendingAge/2), sweepBatch)
		if err != nil {
			return err
		}
		ids, err = pgx.CollectRows(rows, pgx.RowTo[pgtype.UUID])
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("sweep: list condemned blobs: %w", err)
	}
	for i, id := range ids {
		if err := s.cfg.Store.Delete(ctx, blob.ID(id.Bytes)); err != nil {
			return i, fmt.Errorf("sweep: %w", err)
		}
	}
	if err := db.once(ctx, exec(sqlSwept, ids, interval(2*o.PendingAge))); err != nil {
		return len(ids), fmt.Errorf("sweep: note what was deleted: %w", err)
	}
	return len(ids), nil
}

func interval(d time.Duration) pgtype.Interval {
	return pgtype.Interval{Microseconds: d.Microseconds(), Valid: true}
}
