package admission

import (
	"context"

	"github.com/fencegate/fencegate/lock/internal/node"
)

// unbroken reports whether a node whose admission has begun still has everything that it ever granted: it is durable,
// its server only restarted, and the epoch that was raised after the admission began is the one after the node's. The
// server of a reign that is over has evicted keys or was promoted; one that was promoted while it had no scripts says
// so itself.
func (g *Group) unbroken(ctx context.Context, n *node.Node, st node.State, a Admission) bool {
	if !st.Durable || !n.Server.Durable || st.Over != nil || st.Said.Promoted || g.cfg.Epochs == nil || a.Base>>epochShift != st.Base>>epochShift+1 {
		return false
	}
	return g.keeps(ctx, n, st)
}

// keeps reports whether a node that is declared durable still has everything that it granted: its settings were
// durable when it was admitted and are so now, and no fence stands above its counters.
func (g *Group) keeps(ctx context.Context, n *node.Node, st node.State) bool {
	err := n.Durability(ctx)
	if store, ok := g.cfg.Epochs.(node.Lister); ok && err == nil {
		err = n.Above(ctx, store, st.Base)
	}
	if err != nil {
		g.cfg.Logger.WarnContext(ctx, "node is declared durable but is quarantined", "node", n.Name, "error", err)
	}
	return err == nil
}
