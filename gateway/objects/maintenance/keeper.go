package maintenance

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
)

// Keeper keeps a blob store and its database consistent. Safe for concurrent use.
type Keeper struct {
	db    objects.Database
	store blob.Store
	owner ownerCache
}

// New creates a keeper of a database's blob store.
func New(db objects.Database, store blob.Store) *Keeper { return &Keeper{db: db, store: store} }

// ownerCache caches for a while that the store belongs to this database, and for a moment that it does not, so that
// concurrent callers need not ask one by one.
type ownerCache struct {
	mu    sync.Mutex
	known bool
	err   error
	until time.Time // of the cached result
}

const (
	ownerPause = time.Second
	ownerTrust = time.Minute // far below the age at which another database would sweep these blobs
)

// put caches a result. The caller holds the lock.
func (c *ownerCache) put(err error) {
	pause := ownerTrust
	if err != nil {
		pause = ownerPause
	}
	c.known, c.err, c.until = err == nil, err, time.Now().Add(pause)
}

const (
	sqlOwnerMark = "SELECT objects.owner_mark()"
	sqlAnyKnown  = "SELECT EXISTS (SELECT FROM objects.blobs WHERE id = ANY ($1))"
	sqlNoneLive  = "SELECT NOT EXISTS (SELECT FROM objects.blobs WHERE state = 'live')"

	ownerSample = 100 // blobs of which one must be known if the store has no mark
)

// StoreOwnerError reports that the blobs belong to another database, or that this database's are elsewhere. Nothing was
// written or deleted.
type StoreOwnerError struct {
	Mark, Ours string
	Empty      bool // and this database lists blobs
}

func (e *StoreOwnerError) Error() string {
	if e.Empty {
		return "the blob store is empty and has no mark of an owner, but this database lists blobs: is its folder mounted, and is it the same for all gateways? " +
			"If the blobs are lost, run: fencegate objects claim"
	}
	if e.Mark == "" {
		return "the blob store holds blobs that this database does not list, and no mark of an owner: it may belong to another installation; " +
			"if it belongs to this one, run: fencegate objects claim"
	}
	return fmt.Sprintf("the blob store belongs to another database: it is marked %q, and this is %q; "+
		"if this database replaces that one, restored or upgraded, and that one is permanently gone, run: fencegate objects claim", e.Mark, e.Ours)
}

// Check checks that the store belongs to this database and behaves as required ([blob.Probe]). The error is a
// [*StoreOwnerError] if it belongs to another. If PostgreSQL is away, the first upload checks the owner again.
//
// The store is marked before anything is written, even the probe's blob: a gateway that starts at the same time would
// take the bytes in an unmarked store for another database's.
func (k *Keeper) Check(ctx context.Context) error {
	err := k.Owned(ctx)
	if _, foreign := errors.AsType[*StoreOwnerError](err); foreign || errors.Is(err, objects.ErrStoreFailed) {
		return err
	}
	if err != nil {
		if mark, markErr := k.store.Owner(ctx); markErr != nil || mark == "" {
			return nil //nolint:nilerr // PostgreSQL is away, which is no fault of the store
		}
	}
	return blob.Probe(ctx, k.store)
}

// Owned returns nil while the store is known to belong to this database. Until then each upload checks, because
// PostgreSQL may have been away when the gateway started. Later, one upload per ownerTrust checks again, because
// another database may have taken the store and would delete new blobs; other uploads do not wait for that check.
func (k *Keeper) Owned(ctx context.Context) error {
	k.owner.mu.Lock()
	if k.owner.known && !time.Now().Before(k.owner.until) {
		k.owner.until = time.Now().Add(ownerTrust)
		k.owner.mu.Unlock()
		return k.stillOwned(ctx)
	}
	defer k.owner.mu.Unlock()
	if k.owner.known {
		return nil
	}
	if k.owner.err != nil && time.Now().Before(k.owner.until) {
		return k.owner.err
	}
	err := k.Claim(ctx, false)
	k.owner.put(err)
	return err
}

// stillOwned checks again. A failed check changes nothing.
func (k *Keeper) stillOwned(ctx context.Context) error {
	err := k.Claim(ctx, false)
	if _, foreign := errors.AsType[*StoreOwnerError](err); !foreign {
		return nil
	}
	k.owner.mu.Lock()
	defer k.owner.mu.Unlock()
	k.owner.put(err)
	return err
}

// Belongs checks the owner without changing anything. The error is a [*StoreOwnerError] if the store belongs, or may
// belong, to another database.
func (k *Keeper) Belongs(ctx context.Context) error {
	_, _, err := k.whose(ctx)
	return err
}

// Claim checks that the store belongs to this database, and marks it if it has no owner. Two databases on one store
// would each sweep the other's blobs as leftovers. The error is a [*StoreOwnerError] if another database owns the
// store; with take, Claim takes it over instead.
func (k *Keeper) Claim(ctx context.Context, take bool) error {
	ours, marked, err := k.whose(ctx)
	if _, foreign := errors.AsType[*StoreOwnerError](err); foreign && take {
		err = nil
	}
	if err != nil || marked {
		return err
	}
	if err := k.store.SetOwner(ctx, ours); err != nil {
		return fmt.Errorf("%w: %w", objects.ErrStoreFailed, err)
	}
	switch mark, err := k.store.Owner(ctx); { // another database may have marked it first
	case err != nil:
		return fmt.Errorf("%w: %w", objects.ErrStoreFailed, err)
	case mark != ours:
		return &StoreOwnerError{Mark: mark, Ours: ours}
	}
	return nil
}

// whose returns this database's mark, and whether the store has it. The error is a [*StoreOwnerError] if the store
// belongs, or may belong, to another database.
func (k *Keeper) whose(ctx context.Context) (ours string, marked bool, err error) {
	err = k.db.Once(ctx, func(ctx context.Context, q objects.Querier) error { return q.QueryRow(ctx, sqlOwnerMark).Scan(&ours) })
	if err != nil {
		return "", false, err
	}
	mark, err := k.store.Owner(ctx)
	if err == nil && mark == "" {
		strange := k.recognise(ctx)
		if strange == nil {
			return ours, false, nil
		}
		// Another gateway may have marked it and written since; the mark decides.
		if mark, err = k.store.Owner(ctx); err == nil && mark == "" {
			return ours, false, strange
		}
	}
	switch {
	case err != nil:
		return ours, false, fmt.Errorf("%w: %w", objects.ErrStoreFailed, err)
	case mark != ours:
		return ours, false, &StoreOwnerError{Mark: mark, Ours: ours}
	}
	return ours, true, nil
}

// recognise checks whether the blobs of an unmarked store belong to this database.
func (k *Keeper) recognise(ctx context.Context) error {
	var some []pgtype.UUID
	for info, err := range k.store.All(ctx) {
		if err != nil {
			return fmt.Errorf("%w: %w", objects.ErrStoreFailed, err)
		}
		if some = append(some, objects.UUID(info.ID)); len(some) == ownerSample {
			break
		}
	}
	sql, args := sqlAnyKnown, []any{some}
	if len(some) == 0 {
		sql, args = sqlNoneLive, nil
	}
	var fits bool
	err := k.db.Once(ctx, func(ctx context.Context, q objects.Querier) error { return q.QueryRow(ctx, sql, args...).Scan(&fits) })
	if err == nil && !fits {
		err = &StoreOwnerError{Empty: len(some) == 0}
	}
	return err
}
