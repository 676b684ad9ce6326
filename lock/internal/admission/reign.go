package admission

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/lock/internal/node"
)

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
	if redis.HasErrorPrefix(err, "OOM") { // a node that evicted may have no memory for it
		return "", n.ForgetIncarnation(ctx)
	}
	return nonce, err
}
