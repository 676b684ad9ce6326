package gateway

import (
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
)

// PassDeadline makes the deadlines of a resource's leases be over, as this gateway knows them.
func (g *Gateway) PassDeadline(resource string) {
	var refs []leasing.Ref
	g.ledger.Each(func(ref leasing.Ref) {
		if ref.Resource == resource {
			refs = append(refs, ref)
		}
	})
	for _, ref := range refs {
		g.ledger.Note(ref, clock.Instant{})
	}
}
