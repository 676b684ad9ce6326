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
	sqlRowless   = "SELECT x.id FROM unnest($1::uuid[]) x (id) WHERE NOT EXISTS (SELECT FROM objects.blobs b WHERE b.id = x.id)"
	sqlAdopt     = "SELECT adopted, named FROM objects.adopt($1, $2)"
	sqlPrune     = "SELECT pruned, coalesce(bucket, ''), key FROM objects.prune_versions($1, $2, $3, $4)"
	sqlForget    = "SELECT objects.forget_deletions($1, $2, $3)"
	sqlForgetOld = "SELECT objects.forget_versions($1, $2, $3)"
	sqlCondemn   = "SELECT objects.condemn($1, $2, $3, $4, $5)"
	sqlGrace     = "SELECT coalesce((extract(epoch FROM objects.sweep_grace()) * 1000000)::bigint, 0)"
	sqlDeclare   = "SELECT objects.grace_for($1, false, false)"
	sqlCondemned = "SELECT objects.condemned($1, $2, $3)"
	sqlSwept     = "SELECT objects.swept($1, $2, $3)"
	sqlClock     = "SELECT clock_timestamp()" // PostgreSQL's clock, with which its rows are compared

	sweepBatch   = 500
	sweepWorkers = 8
	adoptBatch   = 50_000    // blobs without a row: for each batch PostgreSQL reads all versions once
	adoptLimit   = time.Hour // for that, however many versions there are
	pruneBatch   = 100       // keys; each may have many versions
	maxFailures  = 500       // reported at most, about
	defaultGrace = 24 * time.Hour
)

// Sweep says what a sweep deletes. No age endangers a live object: a blob that is too young stays longer, and an upload
// that is swept while in progress is refused at its commit.
type Sweep struct {
	PendingAge    time.Duration // of uploads that were never completed. Default 24h
	SupersededAge time.Duration // of superseded versions: readers, replicas and restores may need them. Default 24h. See Shorten
	Shorten       bool          // SupersededAge counts, and is recorded, although a sweep has declared a longer one
	RecordAge     time.Duration // of records of deletions, tag changes, versions without bytes. Default [DefaultRecordAge]
	Store         bool          // also scan the whole store for blobs that the database does not list
	UnknownAge    time.Duration // of unlisted blobs, by the store's clock; then they count as superseded. Default 24h
	Rate          int           // blobs deleted per second. Default 0: no limit
	DryRun        bool          // only count; condemned and forgotten rows up to [DryLimit]
}

// DryLimit is how far a dry run counts records and blobs.
const DryLimit = 100_000

// DefaultRecordAge is how long records of writes stay. They say who wrote what, and answer a repeated request that was
// carried out. So they stay longer than credentials last and an upload takes.
const DefaultRecordAge = 30 * 24 * time.Hour

// Swept is the result of a sweep.
type Swept struct {
	Adopted   int // unlisted blobs in the store, now recorded
	Listed    int // blobs without a row that a version lists: left alone, but a sign of damage
	Pruned    int // older versions that their buckets no longer keep
	Forgotten int // records of deletions, and of versions without bytes
	Condemned int // blobs to which nothing points, now marked
	Deleted   int // blobs whose bytes were deleted, some of them again
}

// Grace returns how long the bytes of superseded versions stay at least: the longest SupersededAge with which a sweep
// of this database has run or that was declared by [Keeper.DeclareGrace], or the one that a sweep with Shorten has set
// since. 0: none of them.
func (k *Keeper) Grace(ctx context.Context) (time.Duration, error) {
	var micros int64
	err := k.db.Once(ctx, func(ctx context.Context, q objects.Querier) error { return q.QueryRow(ctx, sqlGrace).Scan(&micros) })
	if err != nil {
		return 0, fmt.Errorf("grace of the sweep: %w", err)
	}
	return time.Duration(micros) * time.Microsecond, nil
}

// DeclareGrace records the SupersededAge of later sweeps, 0 for the default, unless a longer one is recorded. Sweeps of
// others keep to it from now on.
func (k *Keeper) DeclareGrace(ctx context.Context, grace time.Duration) error {
	orDefault(&grace, defaultGrace)
	if err := k.db.Once(ctx, objects.Exec(sqlDeclare, objects.Interval(grace))); err != nil {
		return fmt.Errorf("declare the grace of the sweep: %w", err)
	}
	return nil
}

// Sweep deletes the bytes of abandoned uploads and superseded versions. It marks and commits a row before it deletes
// the bytes, so a crash at any moment loses nothing, and the next sweep continues. If the scan of the store fails, or
// the store fails to delete some bytes, the sweep continues and the error joins the failures. Several sweeps may run at
// once; the longest SupersededAge of them all counts, also later, see [Keeper.Grace]. Sweep does not touch another
// database's store, see [Keeper.Claim].
func (k *Keeper) Sweep(ctx context.Context, o Sweep) (Swept, error) {
	orDefault(&o.PendingAge, 24*time.Hour)
	orDefault(&o.SupersededAge, defaultGrace)
	orDefault(&o.RecordAge, DefaultRecordAge)
	orDefault(&o.UnknownAge, 24*time.Hour)
	own := func() error { return k.Claim(ctx, false) }
	if o.DryRun { // a dry run writes no mark either
		own = func() error { _, _, err := k.whose(ctx); return err }
	}
	if err := own(); err != nil {
		return Swept{}, fmt.Errorf("sweep: %w", err)
	}
	s := sweeper{db: k.db, store: k.store, Sweep: o, pace: pace{rate: o.Rate}, own: own, limit: adoptLimit}
	var scan error // the rest needs no scan: it touches only blobs that have a row
	if o.Store {
		if err := s.adopt(ctx); err != nil {
			scan = fmt.Errorf("sweep: look for unknown blobs: %w", err)
		}
	}
	err := s.mark(ctx)
	if err == nil && !o.DryRun {
		err = s.remove(ctx)
	}
	return s.swept, errors.Join(scan, err)
}

// sweeper is one sweep.
type sweeper struct {
	Sweep

	db    objects.Database
	store blob.Store
	own   func() error // returns nil while the store belongs to this database
	pace  pace
	limit time.Duration // of a statement that reads all versions
	swept Swept
}

// mark marks the rows of blobs that may be deleted.
func (s *sweeper) mark(ctx context.Context) error {
	if err := s.prune(ctx); err != nil {
		return fmt.Errorf("sweep: release old versions: %w", err)
	}
	limit := sweepBatch
	if s.DryRun {
		limit = DryLimit
	}
	for _, step := range []struct {
		doing, sql string
		args       []any
		count      *int
	}{
		{"forget deletions", sqlForget, []any{objects.Interval(s.RecordAge), limit, s.DryRun}, &s.swept.Forgotten},
		{"forget versions", sqlForgetOld, []any{objects.Interval(s.RecordAge), limit, s.DryRun}, &s.swept.Forgotten},
		{"condemn", sqlCondemn, []any{objects.Interval(s.PendingAge), objects.Interval(s.SupersededAge), limit, s.DryRun, s.Shorten}, &s.swept.Condemned},
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

// prune releases old versions, some keys of one bucket at a time.
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

// removeSome deletes the bytes of some condemned blobs. failed holds an error for each blob that the store failed to
// delete; err stops the sweep.
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

// removeAll deletes bytes, several blobs at a time.
func (s *sweeper) removeAll(ctx context.Context, ids []pgtype.UUID) (gone, stuck []pgtype.UUID, failed []error, err error) {
	gone, stuck = []pgtype.UUID{}, []pgtype.UUID{} // not nil, which would be NULL
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

// pace limits a rate per second; 0: no limit.
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

// adopt scans the store for blobs without a row, and for unfinished ones that a crash left. Those that it found before
// the scan failed are adopted all the same.
func (s *sweeper) adopt(ctx context.Context) error {
	found := rowless{sweeper: s}
	err := found.scan(ctx)
	return errors.Join(err, found.adopt(ctx))
}

// rowless collects blobs without a row.
type rowless struct {
	*sweeper

	batch   []pgtype.UUID // of the store, not yet looked up
	unknown []pgtype.UUID // have no row
}

func (r *rowless) scan(ctx context.Context) error {
	old := time.Now().Add(-r.UnknownAge)
	lists := []iter.Seq2[blob.Info, error]{r.store.All(ctx)}
	if left, ok := r.store.(interface {
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
			if r.batch = append(r.batch, objects.UUID(info.ID)); len(r.batch) == sweepBatch {
				if err := r.lookUp(ctx); err != nil {
					return err
				}
			}
		}
	}
	return r.lookUp(ctx)
}

// lookUp looks the batch up, and adopts the blobs without a row once there are many.
func (r *rowless) lookUp(ctx context.Context) error {
	err := r.db.Once(ctx, func(ctx context.Context, q objects.Querier) error {
		rows, err := q.Query(ctx, sqlRowless, r.batch)
		if err != nil {
			return err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[pgtype.UUID])
		r.unknown = append(r.unknown, ids...)
		return err
	})
	r.batch = r.batch[:0]
	if err != nil || len(r.unknown) < adoptBatch {
		return err
	}
	return r.adopt(ctx)
}

// adopt records the unknown blobs that no version lists.
func (r *rowless) adopt(ctx context.Context) error {
	begun, n := time.Now(), len(r.unknown)
	var adopted, named int
	err := r.db.Within(r.limit).Once(ctx, func(ctx context.Context, q objects.Querier) error {
		return q.QueryRow(ctx, sqlAdopt, r.unknown, r.DryRun).Scan(&adopted, &named)
	})
	r.swept.Adopted += adopted
	r.swept.Listed += named
	r.unknown = r.unknown[:0]
	if err != nil && ctx.Err() == nil && time.Since(begun) >= r.limit {
		return fmt.Errorf("PostgreSQL took longer than %v to compare %d unknown blobs with all versions", r.limit, n)
	}
	return err
}
