package maintenance

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
)

const (
	sqlAdopt     = "SELECT adopted, named FROM objects.adopt($1, $2)"
	sqlPrune     = "SELECT pruned, coalesce(bucket, ''), key FROM objects.prune_versions($1, $2, $3, $4)"
	sqlForget    = "SELECT objects.forget_deletions($1, $2, $3)"
	sqlForgetOld = "SELECT objects.forget_versions($1, $2, $3)"
	sqlCondemn   = "SELECT objects.condemn($1, $2, $3, $4)"
	sqlCondemned = "SELECT objects.condemned($1, $2, $3)"
	sqlSwept     = "SELECT objects.swept($1, $2, $3)"
	sqlClock     = "SELECT clock_timestamp()" // the database's: what its rows are compared with

	sweepBatch   = 500
	sweepWorkers = 8
	pruneBatch   = 100 // keys: each may have many versions
	dryLimit     = 100_000
	maxFailures  = 500 // about how many are reported
)

// Sweep says what a sweep takes away. No age endangers a live object: what is
// too young merely stays longer, and an upload that is swept while it is under
// way is refused at its commit.
type Sweep struct {
	PendingAge    time.Duration // of uploads that were begun and never completed. Default 24h
	SupersededAge time.Duration // of versions that are no longer current: readers, replicas and restores may need them. Default 24h
	RecordAge     time.Duration // of the records of versions whose bytes are gone, of deletions and changes of tags; see [DefaultRecordAge]
	Store         bool          // look through the whole store, too, for blobs that the database does not know
	UnknownAge    time.Duration // of those, by the store's clock; then they are superseded, and get that grace. Default 24h
	Rate          int           // bytes of how many blobs are deleted in a second. Default 0: as fast as the store does it
	DryRun        bool          // only count, of what is condemned and forgotten up to 100,000
}

// DefaultRecordAge is how long records of writes stay. They say who wrote what, and
// tell a request that is repeated that it was carried out: so they stay for longer
// than credentials last and an upload takes.
const DefaultRecordAge = 30 * 24 * time.Hour

// Swept says what a sweep did.
type Swept struct {
	Adopted   int // blobs in the store that the database did not know, noted now
	Named     int // blobs that the database did not know, though a version lists them: left alone, but something is wrong
	Pruned    int // older versions that their buckets keep no longer
	Forgotten int // records of deletions, and of versions whose bytes are gone
	Condemned int // blobs that nothing points at, now marked
	Deleted   int // blobs whose bytes were deleted, some of them once more
}

// Sweep deletes the bytes of uploads that were given up and of superseded
// versions. The row is marked and committed before its bytes go, so a crash at
// any moment loses nothing and the next sweep goes on. Bytes that the store can't
// delete stop nothing; the error joins what was said of each. Several sweeps may
// run at once. It touches no store of another's, see [Keeper.Claim].
func (k *Keeper) Sweep(ctx context.Context, o Sweep) (Swept, error) {
	orDefault(&o.PendingAge, 24*time.Hour)
	orDefault(&o.SupersededAge, 24*time.Hour)
	orDefault(&o.RecordAge, DefaultRecordAge)
	orDefault(&o.UnknownAge, 24*time.Hour)
	own := func() error { return k.Claim(ctx, false) }
	if o.DryRun { // which writes no mark either
		own = func() error { _, _, err := k.whose(ctx); return err }
	}
	if err := own(); err != nil {
		return Swept{}, fmt.Errorf("sweep: %w", err)
	}
	s := sweeper{db: k.db, store: k.store, Sweep: o, pace: pace{rate: o.Rate}, own: own}
	err := s.mark(ctx)
	if err == nil && !o.DryRun {
		err = s.remove(ctx)
	}
	return s.swept, err
}

// sweeper is one sweep.
type sweeper struct {
	Sweep

	db    objects.Database
	store blob.Store
	own   func() error // nil while the store is this database's
	pace  pace
	swept Swept
}

// mark finds what may go and says so in its rows.
func (s *sweeper) mark(ctx context.Context) error {
	if s.Store {
		if err := s.adopt(ctx); err != nil {
			return fmt.Errorf("sweep: look for unknown blobs: %w", err)
		}
	}
	if err := s.prune(ctx); err != nil {
		return fmt.Errorf("sweep: release old versions: %w", err)
	}
	limit := sweepBatch
	if s.DryRun {
		limit = dryLimit
	}
	for _, step := range []struct {
		doing, sql string
		args       []any
		count      *int
	}{
		{"forget deletions", sqlForget, []any{objects.Interval(s.RecordAge), limit, s.DryRun}, &s.swept.Forgotten},
		{"forget versions", sqlForgetOld, []any{objects.Interval(s.RecordAge), limit, s.DryRun}, &s.swept.Forgotten},
		{"condemn", sqlCondemn, []any{objects.Interval(s.PendingAge), objects.Interval(s.SupersededAge), limit, s.DryRun}, &s.swept.Condemned},
	} {
		for {
			var n int
			err := s.db.Once(ctx, func(ctx context.Context, q objects.Querier) error {
				return q.QueryRow(ctx, step.sql, step.args...).Scan(&n)
			})
			if err != nil {
				return fmt.Errorf("sweep: %s: %w", step.doing, err)
			}
			*step.count += n
			if n < limit || s.DryRun {
				break
			}
		}
	}
	return nil
}

// prune lets old versions go, some keys of one bucket at a time.
func (s *sweeper) prune(ctx context.Context) error {
	bucket, key := "", (*string)(nil)
	for {
		var n int
		var next string
		err := s.db.Once(ctx, func(ctx context.Context, q objects.Querier) error {
			var last *string
			err := q.QueryRow(ctx, sqlPrune, bucket, key, pruneBatch, s.DryRun).Scan(&n, &next, &last)
			if err == nil {
				key = last
			}
			return err
		})
		if err != nil || next == "" {
			return err
		}
		bucket = next
		s.swept.Pruned += n
	}
}

// remove deletes the bytes of condemned blobs.
func (s *sweeper) remove(ctx context.Context) error {
	var begun time.Time
	err := s.db.Once(ctx, func(ctx context.Context, q objects.Querier) error { return q.QueryRow(ctx, sqlClock).Scan(&begun) })
	if err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	var failures []error
	for {
		if err := s.own(); err != nil { // it may take hours, and another database may have taken the store
			return errors.Join(append(failures, fmt.Errorf("sweep: %w", err))...)
		}
		n, failed, err := s.removeSome(ctx, begun)
		s.swept.Deleted += n
		if len(failures) < maxFailures {
			failures = append(failures, failed...)
		}
		if err != nil || n+len(failed) < sweepBatch {
			return errors.Join(append(failures, err)...)
		}
	}
}

// removeSome deletes the bytes of some condemned blobs. Failed holds an error for
// each that the store would not delete; err stops the sweep.
func (s *sweeper) removeSome(ctx context.Context, begun time.Time) (deleted int, failed []error, err error) {
	var ids []pgtype.UUID
	err = s.db.Once(ctx, func(ctx context.Context, q objects.Querier) error {
		rows, err := q.Query(ctx, sqlCondemned, objects.Interval(s.PendingAge/2), begun, sweepBatch)
		if err != nil {
			return err
		}
		ids, err = pgx.CollectRows(rows, pgx.RowTo[pgtype.UUID])
		return err
	})
	if err != nil {
		return 0, nil, fmt.Errorf("sweep: list condemned blobs: %w", err)
	}
	gone, stuck, failed, err := s.removeAll(ctx, ids)
	noted := s.db.Once(context.WithoutCancel(ctx), objects.Exec(sqlSwept, gone, stuck, objects.Interval(2*s.PendingAge)))
	if noted != nil {
		err = errors.Join(err, fmt.Errorf("sweep: note what was deleted: %w", noted))
	}
	return len(gone), failed, err
}

// removeAll deletes bytes, several at a time: a service answers each in its own time.
func (s *sweeper) removeAll(ctx context.Context, ids []pgtype.UUID) (gone, stuck []pgtype.UUID, failed []error, err error) {
	gone, stuck = []pgtype.UUID{}, []pgtype.UUID{} // not nil, which is NULL to PostgreSQL
	var mu sync.Mutex
	var wg sync.WaitGroup
	free := make(chan struct{}, sweepWorkers)
	for _, id := range ids {
		if err = s.pace.wait(ctx); err != nil {
			err = fmt.Errorf("sweep: %w", err)
			break
		}
		free <- struct{}{}
		wg.Go(func() {
			err := s.store.Delete(ctx, blob.ID(id.Bytes))
			mu.Lock()
			defer mu.Unlock()
			<-free
			if err != nil {
				stuck, failed = append(stuck, id), append(failed, fmt.Errorf("sweep: %w", err))
				return
			}
			gone = append(gone, id)
		})
	}
	wg.Wait()
	return gone, stuck, failed, err
}

// pace lets so many things happen in a second; 0: any number.
type pace struct {
	rate int
	next time.Time
}

func (p *pace) wait(ctx context.Context) error {
	if p.rate <= 0 || ctx.Err() != nil {
		return ctx.Err()
	}
	if now := time.Now(); p.next.Before(now) {
		p.next = now
	}
	pause := time.NewTimer(time.Until(p.next))
	defer pause.Stop()
	p.next = p.next.Add(time.Second / time.Duration(p.rate))
	select {
	case <-pause.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func orDefault[T time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

// adopt looks through the store for blobs without a row, and what a crash left of
// others.
func (s *sweeper) adopt(ctx context.Context) error {
	old := time.Now().Add(-s.UnknownAge)
	var batch []pgtype.UUID
	flush := func() error {
		var adopted, named int
		err := s.db.Once(ctx, func(ctx context.Context, q objects.Querier) error {
			return q.QueryRow(ctx, sqlAdopt, batch, s.DryRun).Scan(&adopted, &named)
		})
		s.swept.Adopted += adopted
		s.swept.Named += named
		batch = batch[:0]
		return err
	}
	lists := []iter.Seq2[blob.Info, error]{s.store.All(ctx)}
	if left, ok := s.store.(interface {
		Unfinished(ctx context.Context) iter.Seq2[blob.Info, error]
	}); ok {
		lists = append(lists, left.Unfinished(ctx))
	}
	for _, list := range lists {
		for info, err := range list {
			if err != nil {
				return err
			}
			if info.Changed.After(old) {
				continue
			}
			if batch = append(batch, objects.UUID(info.ID)); len(batch) == sweepBatch {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	return flush()
}
