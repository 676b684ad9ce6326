package gateway

import "github.com/fencegate/fencegate/fence/clock"

// PassDeadline makes the deadlines of a resource's leases be over, as this gateway knows them.
func (g *Gateway) PassDeadline(resource string) {
	g.held.mu.Lock()
	defer g.held.mu.Unlock()
	for ref := range g.held.until {
		if ref.Resource == resource {
			g.held.until[ref] = clock.Instant{}
		}
	}
}
