package maintenance

import (
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

// remember notes what a look has found. The lock is held.
func (s *memory) remember(err error) {
	pause := ownerTrust
	if err != nil {
		pause = ownerPause
	}
	s.known, s.err, s.until = err == nil, err, time.Now().Add(pause)
}
