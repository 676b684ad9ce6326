package admission

import (
	"context"
	"time"

	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// watch finds lost nodes also while no leases are requested, and what the answers to requests don't show: that a node
// may evict keys, or that its reign is over. It checks each node once in one to two seconds, until the Locker is closed,
// and with an Armer admits the lost ones. A group in which no node was ever admitted is left to Init, which
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
	return g.admissions[n.Index]
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

// sight is a check that found a node admitted, and its reign as noted.
type sight struct {
	reign string
	at    clock.Instant
}

// sightLasts is how long a sight proves that a replication ID was drawn by a server that did not change its role. It is
// longer than the time between two checks, and far shorter than repl-backlog-ttl.
const sightLasts = 10 * time.Second

// change is a new replication ID of a server of which this process does not know whether its reign goes on.
type change struct {
	id    string
	until clock.Instant
}

// idPatience is how long such a node is left to the processes that know: they check it every two seconds.
const idPatience = 5 * time.Second

// keepsReign reports whether a node whose reign seems over is not lost, or not yet. A process that saw the node admitted
// shortly before knows that its reign goes on, and notes the new replication ID. If that fails, the next check tries
// again. Another process leaves the node to those for a while, without an open link.
func (g *Group) keepsReign(ctx context.Context, n *node.Node, st node.State) bool {
	if !st.Renewable() {
		return false
	}
	if saw := g.sights[n.Index].Load(); saw != nil && saw.reign == st.Reign && !saw.at.Add(sightLasts).Passed() {
		if err := n.NoteReign(ctx, st); err != nil {
			g.cfg.Logger.WarnContext(ctx, "failed to note a node's new replication id; the next check tries again", "node", n.Name, "error", err)
		}
		return true
	}
	c := g.changes[n.Index].Load()
	if c == nil || c.id != st.Said.ReplicationID {
		c = &change{st.Said.ReplicationID, g.cfg.Clock.Now().Add(idPatience)}
		g.changes[n.Index].Store(c)
	}
	if c.until.Passed() {
		return false
	}
	n.Drop()
	return true
}

// depose ends the incarnation of a node whose reign is over, for processes too that may not ask for INFO. After that
// nothing makes it look admitted, such as CONFIG RESETSTAT, which sets the number of evicted keys to 0. It returns the
// next incarnation, see [node.rename]; "": none.
func (g *Group) depose(ctx context.Context, n *node.Node, st node.State) (string, error) {
	g.cfg.Logger.WarnContext(ctx, "node is lost", "node", n.Name, "error", st.Over)
	nonce := g.NewNonce()
	err := n.Rename(ctx, st.Incarnation, nonce, st.Reign)
	if node.IsOutOfMemory(err) { // a node that evicted may have no memory for it
		return "", n.ForgetIncarnation(ctx)
	}
	return nonce, err
}

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
