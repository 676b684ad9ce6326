package maintenance

import (
	"sync"
	"time"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
)

// Keeper keeps a blob store and its database consistent. Safe for concurrent use.
type Keeper struct {
	db     objects.Database
	store  blob.Store
	memory memory
}

// New creates a keeper of a database's blob store.
func New(db objects.Database, store blob.Store) *Keeper { return &Keeper{db: db, store: store} }

// memory caches for a while that the store belongs to this database, and for a moment that it does not, so that
// concurrent callers need not ask one by one.
type memory struct {
	mu    sync.Mutex
	known bool
	err   error
	until time.Time // of the cached result
}

const (
	ownerPause = time.Second
	ownerTrust = time.Minute // far below the age at which another database would sweep these blobs
)

// remember caches a result. The caller holds the lock.
func (s *memory) remember(err error) {
	pause := ownerTrust
	if err != nil {
		pause = ownerPause
	}
	s.known, s.err, s.until = err == nil, err, time.Now().Add(pause)
}
