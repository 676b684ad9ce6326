package s3

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/gateway/blob"
)

const (
	sqlAdopt     = "SELECT adopted, named FROM objects.adopt($1, $2)"
	sqlOwnerMark = "SELECT objects.owner_mark()"
	sqlAnyKnown  = "SELECT EXISTS (SELECT FROM objects.blobs WHERE id = ANY ($1))"
	sqlNoneLive  = "SELECT NOT EXISTS (SELECT FROM objects.blobs WHERE state = 'live')"

	ownerSample = 100 // blobs of which one must be known where nobody has marked the store
)

// StoreOwnerError: the blobs belong to another database, or this database's are
// elsewhere. Nothing was written there or deleted.
type StoreOwnerError struct {
	Mark, Ours string
	Empty      bool // and this database lists blobs
}

func (e *StoreOwnerError) Error() string {
	if e.Empty {
		return "the blob store is empty and has no mark of an owner, but this database lists blobs: is its folder mounted, and is it the same for all gateways? " +
			"Where the blobs are lost: fencegate objects claim"
	}
	if e.Mark == "" {
		return "the blob store holds blobs that this database knows nothing of, and no mark of an owner: it may be another installation's; " +
			"where it is this one's: fencegate objects claim"
	}
	return fmt.Sprintf("the blob store belongs to another database: it is marked %q, and this is %q; "+
		"where this one has taken the other's place, restored or upgraded, and the other is gone for good: fencegate objects claim", e.Mark, e.Ours)
}

// Claim sees that the store is this database's, and marks it where it is nobody's.
// Two databases on one store would each take the other's blobs for leftovers. The
// error is a [*StoreOwnerError] where it is another's; take makes it this one's
// all the same.
func (c *Catalog) Claim(ctx context.Context, store blob.Store, take bool) error {
	ours, marked, err := c.whose(ctx, store)
	if _, foreign := errors.AsType[*StoreOwnerError](err); foreign && take {
		err = nil
	}
	if err != nil || marked {
		return err
	}
	if err := store.SetOwner(ctx, ours); err != nil {
		return fmt.Errorf("%w: %w", errStoreFailed, err)
	}
	switch mark, err := store.Owner(ctx); { // another may have come first
	case err != nil:
		return fmt.Errorf("%w: %w", errStoreFailed, err)
	case mark != ours:
		return &StoreOwnerError{Mark: mark, Ours: ours}
	}
	return nil
}

// Belongs changes nothing: its error is a [*StoreOwnerError] where the store is,
// or may be, another database's.
func (c *Catalog) Belongs(ctx context.Context, store blob.Store) error {
	_, _, err := c.whose(ctx, store)
	return err
}

// whose says how this database's mark reads, and whether the store has it. The
// error is a [*StoreOwnerError] where the store is, or may be, another's.
func (c *Catalog) whose(ctx context.Context, store blob.Store) (ours string, marked bool, err error) {
	err = c.db.once(ctx, func(ctx context.Context, q querier) error { return q.QueryRow(ctx, sqlOwnerMark).Scan(&ours) })
	if err != nil {
		return "", false, err
	}
	mark, err := store.Owner(ctx)
	if err == nil && mark == "" {
		strange := c.recognise(ctx, store)
		if strange == nil {
			return ours, false, nil
		}
		// Another gateway may have marked it meanwhile, and written since: the mark comes first.
		if mark, err = store.Owner(ctx); err == nil && mark == "" {
			return ours, false, strange
		}
	}
	switch {
	case err != nil:
		return ours, false, fmt.Errorf("%w: %w", errStoreFailed, err)
	case mark != ours:
		return ours, false, &StoreOwnerError{Mark: mark, Ours: ours}
	}
	return ours, true, nil
}

// recognise looks whether the blobs of a store without a mark are this database's.
func (c *Catalog) recognise(ctx context.Context, store blob.Store) error {
	var some []pgtype.UUID
	for info, err := range store.All(ctx) {
		if err != nil {
			return fmt.Errorf("%w: %w", errStoreFailed, err)
		}
		if some = append(some, uuid(info.ID)); len(some) == ownerSample {
			break
		}
	}
	sql, args := sqlAnyKnown, []any{some}
	if len(some) == 0 {
		sql, args = sqlNoneLive, nil
	}
	var fits bool
	err := c.db.once(ctx, func(ctx context.Context, q querier) error { return q.QueryRow(ctx, sql, args...).Scan(&fits) })
	if err == nil && !fits {
		err = &StoreOwnerError{Empty: len(some) == 0}
	}
	return err
}

// storeOwner remembers for a while that the store has been found to be this
// database's, and for a moment that it has not: those who waited meanwhile need not
// ask one by one.
type storeOwner struct {
	mu    sync.Mutex
	known bool
	err   error
	until time.Time // of what is remembered
}

const (
	ownerPause = time.Second
	ownerTrust = time.Minute // far below the age at which another database would take these blobs for leftovers
)

// owned is nil while the store is known to be this database's. Before that each
// upload looks: PostgreSQL may have been away when the gateway started. Later one
// looks now and then, for another database may have taken the store, and deletes
// what is put there; the others do not wait for that.
func (b *backend) owned(ctx context.Context) error {
	b.store.mu.Lock()
	if b.store.known && !time.Now().Before(b.store.until) {
		b.store.until = time.Now().Add(ownerTrust)
		b.store.mu.Unlock()
		return b.stillOwned(ctx)
	}
	defer b.store.mu.Unlock()
	if b.store.known {
		return nil
	}
	if b.store.err != nil && time.Now().Before(b.store.until) {
		return b.store.err
	}
	err := (&Catalog{db: b.db}).Claim(ctx, b.cfg.Store, false)
	b.store.remember(err)
	return err
}

// stillOwned looks again. Where that fails, nothing says that anything has changed.
func (b *backend) stillOwned(ctx context.Context) error {
	err := (&Catalog{db: b.db}).Claim(ctx, b.cfg.Store, false)
	if _, foreign := errors.AsType[*StoreOwnerError](err); !foreign {
		return nil
	}
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	b.store.remember(err)
	return err
}

// remember notes what a look has found. The lock is held.
func (s *storeOwner) remember(err error) {
	pause := ownerTrust
	if err != nil {
		pause = ownerPause
	}
	s.known, s.err, s.until = err == nil, err, time.Now().Add(pause)
}

// CheckStore sees whether the store does what is relied upon ([blob.Probe]), and
// that it is this database's. The error is a [*StoreOwnerError] where it is not.
// Where PostgreSQL can't say, the first upload asks again.
func (s *Server) CheckStore(ctx context.Context) error {
	if err := blob.Probe(ctx, s.cfg.Store); err != nil {
		return err
	}
	err := s.backend.owned(ctx)
	if _, foreign := errors.AsType[*StoreOwnerError](err); foreign || errors.Is(err, errStoreFailed) {
		return err
	}
	return nil
}

// adopt looks through the store for blobs without a row, and what a crash left of
// others.
func (s *sweeper) adopt(ctx context.Context) error {
	old := time.Now().Add(-s.UnknownAge)
	var batch []pgtype.UUID
	flush := func() error {
		var adopted, named int
		err := s.db.once(ctx, func(ctx context.Context, q querier) error {
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
			if batch = append(batch, uuid(info.ID)); len(batch) == sweepBatch {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	return flush()
}
