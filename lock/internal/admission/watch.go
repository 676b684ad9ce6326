package admission

import (
	"time"

	"github.com/fencegate/fencegate/lock/internal/node"
)

// watch finds lost nodes also while no leases are requested, and what the answers to requests don't show: that a node
// may evict keys, or that its reign is over. It checks each node once in one to two seconds, until the Locker is closed,
// and with an Armer admits the lost ones. A group in which no node was ever admitted is left to [Locker.Init], which
// needs no quarantine before the first admission.
func (g *Group) watch() {
	select {
	case <-g.naming.known:
	case <-g.ctx.Done():
		return
	}
	looks := make([]nodeWatch, len(g.Nodes))
	for Pause(g.ctx, time.Second+g.cfg.Dice.Random(time.Second)) == nil {
		g.each(func(i int, n *node.Node) {
			if !g.looksAfter(n) {
				looks[i].again(g, n)
			}
		})
		used := false
		for i := range looks {
			used = used || looks[i].used
		}
		for i, n := range g.Nodes {
			if looks[i].lost(used) {
				g.nodeLost(n)
			}
		}
		var group node.Limits
		for i := range looks {
			group = group.Or(looks[i].limits)
		}
		if group.Longest > 0 {
			g.noted.Store(&group)
		}
	}
}

// Sighted reports whether a check found a node admitted.
func (g *Group) Sighted(n *node.Node) bool { return g.sights[n.Index].Load() != nil }

// looksAfter reports whether a node's admission is in progress in this process.
func (g *Group) looksAfter(n *node.Node) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.admitting[n.Index]
}

// nodeWatch is the result of the checks of a node.
type nodeWatch struct {
	admitted *node.Bound // when it was last seen admitted; nil: never
	used     bool        // it was admitted once, or an admission has begun
	limits   node.Limits // when it was last seen admitted
	missing  int         // checks in a row that found it not admitted
}

// lost reports whether the node has to be admitted. An empty node that this process never saw admitted may be in the
// middle of a first start: it needs a second check.
func (s *nodeWatch) lost(used bool) bool {
	return s.missing > 0 && s.used || s.missing > 1 && used
}

func (s *nodeWatch) again(g *Group, n *node.Node) {
	begun := g.cfg.Clock.Now()
	if s.admitted != nil {
		if is, now, reign := n.Confirm(g.ctx, s.admitted); is {
			s.limits, s.missing = now, 0
			g.sights[n.Index].Store(&sight{reign, begun})
			return
		}
	}
	st := n.State(g.ctx)
	if g.keepsReign(g.ctx, n, st) {
		return
	}
	if st.Over != nil && !st.Said.Replica {
		_, _ = g.depose(g.ctx, n, st) // the next check tries again
	}
	if st.Err == nil && !st.Admitted || st.Said.Unfit() != nil {
		n.Drop()
	}
	if st.Err != nil {
		s.missing = 0
		return
	}
	s.used = s.used || st.Incarnation != "" || st.Quarantine > 0
	if s.missing++; st.Admitted {
		s.admitted, s.limits, s.missing = node.Bind(st.Incarnation), st.Limits, 0
		g.sights[n.Index].Store(&sight{st.Reign, begun})
	}
}
