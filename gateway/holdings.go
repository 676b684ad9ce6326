package gateway

import (
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
)

// holdings are the leases that this gateway has given or extended and that are not over, for a
// gauge. Another gateway may have ended one: then it counts until its deadline.
type holdings struct {
	mu    sync.Mutex
	until map[leasing.Ref]time.Time
	prune int // at this size those that ran out are dropped
}

// minPrune is the size below which nothing is dropped but by a count.
const minPrune = 1024

func newHoldings() *holdings {
	return &holdings{until: make(map[leasing.Ref]time.Time), prune: minPrune}
}

func (h *holdings) note(ref leasing.Ref, deadline time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until[ref] = deadline
	if len(h.until) >= h.prune {
		h.dropOver()
	}
}

func (h *holdings) drop(ref leasing.Ref) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.until, ref)
}

// dropOver drops those that ran out; the caller has locked mu.
func (h *holdings) dropOver() {
	now := time.Now()
	for ref, deadline := range h.until {
		if !now.Before(deadline) {
			delete(h.until, ref)
		}
	}
	h.prune = max(minPrune, 2*len(h.until))
}

func (h *holdings) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dropOver()
	return len(h.until)
}
