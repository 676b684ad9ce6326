package etcdlock

import (
	"sync"

	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

// revisionsKept is how many revisions are kept before those of ended leases are dropped.
const revisionsKept = 1024

// revisions are the revisions at which this process's extensions left the keys, by owner.
type revisions struct {
	mu   sync.Mutex
	of   map[string]revision
	full int // the count at which entries of ended leases are dropped
}

type revision struct {
	number int64
	ends   clock.Instant // afterwards it is rarely needed
}

// last returns the last revision of a lease's key that this process knows: that of its last extension, or its create
// revision. If it is out of date, etcd's refusal returns the current one.
func (r *revisions) last(ref leasing.Ref) int64 {
	r.mu.Lock()
	known, ok := r.of[ref.Owner]
	r.mu.Unlock()
	if o, isOurs := leases.ParseOwner(ref.Owner); !ok && isOurs {
		return int64(ref.Token - o.Base)
	}
	return known.number
}

// note records the revision at which a change left the key. Answers arrive in any order.
func (r *revisions) note(c *change) {
	if c.lease == nil {
		r.forget(c.ref.Owner)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = make(map[string]revision)
	}
	if c.found > r.of[c.ref.Owner].number {
		r.of[c.ref.Owner] = revision{number: c.found, ends: c.lease.ends()}
	}
	if len(r.of) < max(r.full, revisionsKept) {
		return
	}
	for owner, one := range r.of {
		if one.ends.Passed() {
			delete(r.of, owner)
		}
	}
	r.full = 2 * len(r.of)
}

func (r *revisions) forget(owner string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.of, owner)
}
