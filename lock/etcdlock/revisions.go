package etcdlock

import (
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
)

// revisionsKept is how many are kept before those of leases that have ended are looked for.
const revisionsKept = 1024

// revisions are those at which this process's extensions left the keys, by their owners.
type revisions struct {
	mu   sync.Mutex
	of   map[string]revision
	full int // at how many those are dropped that have ended
}

type revision struct {
	number int64
	ends   time.Time // nobody asks for it after that, as a rule
}

// last is the revision at which a lease's key was left, as far as this process knows: without an extension, where it was
// created. Where that is wrong, etcd's refusal tells the right one.
func (r *revisions) last(ref leasing.Ref) int64 {
	r.mu.Lock()
	known, ok := r.of[ref.Owner]
	r.mu.Unlock()
	if o, isOurs := parseOwner(ref.Owner); !ok && isOurs {
		return int64(ref.Token - o.base)
	}
	return known.number
}

// note keeps where a change left the key. Answers come in any order.
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
		r.of[c.ref.Owner] = revision{number: c.found, ends: c.lease.ends}
	}
	if len(r.of) < max(r.full, revisionsKept) {
		return
	}
	for owner, one := range r.of {
		if time.Now().After(one.ends) {
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
