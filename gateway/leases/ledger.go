package leases

import (
	"sync"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
)

// Ledger lists the unexpired leases that this gateway has granted or extended, for a gauge and for events. A lease that
// another gateway ended counts until its deadline.
type Ledger struct {
	mu      sync.Mutex
	until   map[leasing.Ref]clock.Instant
	latest  map[string]fence.Token // of each resource, unless known to be released
	arming  map[string]int         // how many armings of each resource go on here
	ranOut  []leasing.Ref          // since the last call of over
	forgets int                    // the size at which latest drops leases that are not held
}

const (
	// maxRanOut bounds how many expired leases are reported at once.
	maxRanOut = 256
	// maxLatest is how many tokens are remembered besides those of held leases.
	maxLatest = 4096
)

// NewLedger returns a Ledger without leases.
func NewLedger() *Ledger {
	return &Ledger{until: make(map[leasing.Ref]clock.Instant), latest: make(map[string]fence.Token), arming: make(map[string]int), forgets: maxLatest}
}

// Note lists a lease until its deadline.
func (l *Ledger) Note(ref leasing.Ref, deadline clock.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until[ref] = deadline
	l.latest[ref.Resource] = max(l.latest[ref.Resource], ref.Token)
	if len(l.latest) >= l.forgets {
		l.forget()
	}
}

// forget drops the tokens of leases that are over. The caller holds mu.
func (l *Ledger) forget() {
	l.dropOver()
	l.latest = make(map[string]fence.Token, len(l.until))
	for ref := range l.until {
		l.latest[ref.Resource] = max(l.latest[ref.Resource], ref.Token)
	}
	l.forgets = max(maxLatest, 2*len(l.latest))
}

// drop strikes a lease that is released or lost.
func (l *Ledger) drop(ref leasing.Ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.until, ref)
	if l.latest[ref.Resource] == ref.Token {
		delete(l.latest, ref.Resource)
	}
}

// armed returns this gateway's token that the new token supersedes, if its lease ran out and is not known to be
// released; 0: none. A lock that is granted before its lease's deadline was released at another gateway. Call armed
// before noting the new lease.
func (l *Ledger) armed(resource string, token fence.Token) fence.Token {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := l.latest[resource]
	if last == 0 || last >= token {
		return 0
	}
	delete(l.latest, resource)
	released := false
	for ref, deadline := range l.until {
		if ref.Resource == resource && ref.Token <= last {
			released = released || ref.Token == last && !deadline.Passed()
			delete(l.until, ref)
		}
	}
	if released {
		return 0
	}
	return last
}

// arm notes that a resource is armed here, until end is called.
func (l *Ledger) arm(resource string) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.arming[resource]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.arming[resource]--; l.arming[resource] == 0 {
			delete(l.arming, resource)
		}
	}
}

// ended forgets the token of a lease that ran out here, but was released or superseded elsewhere. While the resource is
// armed here, this may be what superseded it: armed is called then.
func (l *Ledger) ended(ref leasing.Ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.latest[ref.Resource] == ref.Token && l.arming[ref.Resource] == 0 {
		delete(l.latest, ref.Resource)
	}
}

// dropOver drops expired leases. The caller holds mu.
func (l *Ledger) dropOver() {
	for ref, deadline := range l.until {
		if !deadline.Passed() {
			continue
		}
		delete(l.until, ref)
		if len(l.ranOut) < maxRanOut {
			l.ranOut = append(l.ranOut, ref)
		}
	}
}

// Count is the number of leases.
func (l *Ledger) Count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropOver()
	return len(l.until)
}

// Each visits each lease. visit must not call the Ledger.
func (l *Ledger) Each(visit func(leasing.Ref)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropOver()
	for ref := range l.until {
		visit(ref)
	}
}

// over returns the leases that expired since its last call.
func (l *Ledger) over() []leasing.Ref {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropOver()
	over := l.ranOut
	l.ranOut = nil
	return over
}
