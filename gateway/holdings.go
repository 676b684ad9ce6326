package gateway

import (
	"sync"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
)

// holdings are the unexpired leases that this gateway has granted or extended, for a gauge and for events. A lease that
// another gateway ended counts until its deadline.
type holdings struct {
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

func newHoldings() *holdings {
	return &holdings{until: make(map[leasing.Ref]clock.Instant), latest: make(map[string]fence.Token), arming: make(map[string]int), forgets: maxLatest}
}

func (h *holdings) note(ref leasing.Ref, deadline clock.Instant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until[ref] = deadline
	h.latest[ref.Resource] = max(h.latest[ref.Resource], ref.Token)
	if len(h.latest) >= h.forgets {
		h.forget()
	}
}

// forget drops the tokens of leases that are over. The caller holds mu.
func (h *holdings) forget() {
	h.dropOver()
	h.latest = make(map[string]fence.Token, len(h.until))
	for ref := range h.until {
		h.latest[ref.Resource] = max(h.latest[ref.Resource], ref.Token)
	}
	h.forgets = max(maxLatest, 2*len(h.latest))
}

func (h *holdings) drop(ref leasing.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.until, ref)
	if h.latest[ref.Resource] == ref.Token {
		delete(h.latest, ref.Resource)
	}
}

// armed returns this gateway's token that the new token supersedes, if its lease ran out and is not known to be
// released; 0: none. A lock that is granted before its lease's deadline was released at another gateway. Call armed
// before noting the new lease.
func (h *holdings) armed(resource string, token fence.Token) fence.Token {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := h.latest[resource]
	if last == 0 || last >= token {
		return 0
	}
	delete(h.latest, resource)
	released := false
	for ref, deadline := range h.until {
		if ref.Resource == resource && ref.Token <= last {
			released = released || ref.Token == last && !deadline.Passed()
			delete(h.until, ref)
		}
	}
	if released {
		return 0
	}
	return last
}

// arm notes that a resource is armed here, until end is called.
func (h *holdings) arm(resource string) (end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.arming[resource]++
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.arming[resource]--; h.arming[resource] == 0 {
			delete(h.arming, resource)
		}
	}
}

// ended forgets the token of a lease that ran out here, but was released or superseded elsewhere. While the resource is
// armed here, this may be what superseded it: armed is called then.
func (h *holdings) ended(ref leasing.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.latest[ref.Resource] == ref.Token && h.arming[ref.Resource] == 0 {
		delete(h.latest, ref.Resource)
	}
}

// dropOver drops expired leases. The caller holds mu.
func (h *holdings) dropOver() {
	for ref, deadline := range h.until {
		if !deadline.Passed() {
			continue
		}
		delete(h.until, ref)
		if len(h.ranOut) < maxRanOut {
			h.ranOut = append(h.ranOut, ref)
		}
	}
}

func (h *holdings) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropOver()
	return len(h.until)
}

// each visits the resource of each held lease.
func (h *holdings) each(visit func(resource string)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropOver()
	for ref := range h.until {
		visit(ref.Resource)
	}
}

// over returns the leases that expired since its last call.
func (h *holdings) over() []leasing.Ref {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropOver()
	over := h.ranOut
	h.ranOut = nil
	return over
}
