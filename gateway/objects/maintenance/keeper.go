package maintenance

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
)

// Keeper keeps a blob store and its database in agreement. Safe for concurrent use.
type Keeper struct {
	db     objects.Database
	store  blob.Store
	memory memory
}

// New makes a keeper of a database's blob store.
func New(db objects.Database, store blob.Store) *Keeper { return &Keeper{db: db, store: store} }

// Check sees whether the store does what is relied upon ([blob.Probe]), and
// that it is this database's. The error is a [*StoreOwnerError] where it is not.
// Where PostgreSQL can't say, the first upload asks again.
func (k *Keeper) Check(ctx context.Context) error {
	if err := blob.Probe(ctx, k.store); err != nil {
		return err
	}
	err := k.Owned(ctx)
	if _, foreign := errors.AsType[*StoreOwnerError](err); foreign || errors.Is(err, objects.ErrStoreFailed) {
		return err
	}
	return nil
}

// memory remembers for a while that the store has been found to be this
// database's, and for a moment that it has not: those who waited meanwhile need not
// ask one by one.
type memory struct {
	mu    sync.Mutex
	known bool
	err   error
	until time.Time // of what is remembered
}

const (
	ownerPause = time.Second
	ownerTrust = time.Minute // far below the age at which another database would take these blobs for leftovers
)

// Owned is nil while the store is known to be this database's. Before that each
// upload looks: PostgreSQL may have been away when the gateway started. Later one
// looks now and then, for another database may have taken the store, and deletes
// what is put there; the others do not wait for that.
func (k *Keeper) Owned(ctx context.Context) error {
	k.memory.mu.Lock()
	if k.memory.known && !time.Now().Before(k.memory.until) {
		k.memory.until = time.Now().Add(ownerTrust)
		k.memory.mu.Unlock()
		return k.stillOwned(ctx)
	}
	defer k.memory.mu.Unlock()
	if k.memory.known {
		return nil
	}
	if k.memory.err != nil && time.Now().Before(k.memory.until) {
		return k.memory.err
	}
	err := k.Claim(ctx, false)
	k.memory.remember(err)
	return err
}

// stillOwned looks again. Where that fails, nothing says that anything has changed.
func (k *Keeper) stillOwned(ctx context.Context) error {
	err := k.Claim(ctx, false)
	if _, foreign := errors.AsType[*StoreOwnerError](err); !foreign {
		return nil
	}
	k.memory.mu.Lock()
	defer k.memory.mu.Unlock()
	k.memory.remember(err)
	return err
}

// remember notes what a look has found. The lock is held.
func (s *memory) remember(err error) {
	pause := ownerTrust
	if err != nil {
		pause = ownerPause
	}
	s.known, s.err, s.until = err == nil, err, time.Now().Add(pause)
}
