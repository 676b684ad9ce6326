package gateway

import (
	"sync/atomic"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
)

// reloads remember whether the last change of the principals was refused.
type reloads struct{ refused atomic.Bool }

func (r *reloads) last() int64 {
	if r.refused.Load() {
		return 0
	}
	return 1
}

// SetPrincipals replaces the principals of a gateway that has some, at once, also for requests
// and streams under way. read gives them; after an error of its own, or of theirs, nothing has
// changed, and the metrics say so until a later change succeeds.
func (g *Gateway) SetPrincipals(read func() ([]access.Definition, error)) error {
	if g.cfg.Principals == nil {
		return &fence.InvalidError{Field: "Principals", Reason: "are none: the gateway was started without"}
	}
	all, err := read()
	var change access.Change
	if err == nil {
		change, err = g.cfg.Principals.Replace(all)
	}
	g.reloads.refused.Store(err != nil)
	if err == nil {
		g.log.Info("the principals were replaced", "principals", len(all), "added", change.Added, "changed", change.Changed, "removed", change.Removed)
	}
	return err
}
