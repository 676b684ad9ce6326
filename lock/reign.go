package lock

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence/clock"
)

// A node loses what it granted not only by a restart. A server may evict keys, and a replica that a failover promotes
// lacks what was not replicated. A promoted replica has no scripts, but a former primary that comes back without a
// restart still has them, beside its successor's data.
//
// So admission notes the server's reign: its replication ID, which each promotion changes, and how many keys it has
// evicted. The reign is compared whenever a link is made, and on open links by [Locker.watch]. A node whose reign is
// over is lost. A server that is a replica, or may evict keys, grants nothing as long as that is so.

var (
	errReplica  = fmt.Errorf("%w: its server is a replica now", ErrQuarantined)
	errPromoted = fmt.Errorf("%w: its replication id is another one than at its admission: it may have been a replica since", ErrQuarantined)
	errEvicted  = fmt.Errorf("%w: it has evicted keys since its admission", ErrQuarantined)
)

// account is what a server says about itself. One that does not say it, because an ACL refuses INFO, is not watched. A
// node with Sentinels has to say it.
type account struct {
	replica       bool
	limit, policy string // maxmemory and maxmemory-policy
	replID        string // "": not known, like evicted
	promoted      bool   // it has the history of another replication ID
	evicted       string // how many keys
	guarded       bool   // it refuses writes while no replica is connected
}

var accountSections = []string{"memory", "replication", "stats"}

// readAccount reads the answer to INFO.
func readAccount(info string) (a account) {
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "maxmemory":
			a.limit = value
		case "maxmemory_policy":
			a.policy = value
		case "role":
			a.replica = value == "slave"
		case "master_replid":
			a.replID = value
		case "master_replid2":
			a.promoted = strings.Trim(value, "0") != ""
		case "evicted_keys":
			a.evicted = value
		case "min_slaves_good_slaves": // present only if min-replicas-to-write is set
			a.guarded = true
		}
	}
	return a
}

// account asks the server.
func (k *link) account() (account, error) {
	vals, err := k.do(append([]string{"INFO"}, accountSections...)...)
	if err != nil || len(vals) != 1 {
		return account{}, cmp.Or(err, errMalformed)
	}
	return readAccount(vals[0].text), nil
}

// reign is what admit.lua notes; "": unknown.
func (a account) reign() string {
	if a.replID == "" || a.evicted == "" {
		return ""
	}
	return a.replID + ":" + a.evicted
}

// unfit says why a server grants nothing at present; nil: it may. Without a memory limit it evicts nothing, whatever
// its policy.
func (a account) unfit() error {
	switch {
	case a.replica:
		return errReplica
	case a.limit == "" || a.limit == "0" || a.policy == "" || a.policy == "noeviction":
		return nil
	}
	return fmt.Errorf("%w: its policy is %s, and its limit %s bytes", ErrEvicts, a.policy, a.limit)
}

// over says why the reign that an admission noted is over; nil: it goes on, or nobody can tell.
func (a account) over(noted string) error {
	switch id, _, _ := strings.Cut(noted, ":"); {
	case noted == "" || a.reign() == "" || a.reign() == noted:
		return nil
	case id != a.replID:
		return errPromoted
	}
	return errEvicted
}

// sight is a check that found a node admitted, and its reign as noted.
type sight struct {
	reign string
	at    clock.Instant
}

// sightLasts is how long a sight proves that a replication ID was drawn by a server that did not change its role. It is
// longer than the time between two checks, and far shorter than repl-backlog-ttl.
const sightLasts = 10 * time.Second

// renewable reports whether a reign that seems over may go on. A server also draws a replication ID when it gets its
// first replica (redis-cli --rdb is one), and when it has had none for repl-backlog-ttl. It has no history of another
// ID then, and neither has a promoted server after repl-backlog-ttl.
func (st *nodeState) renewable() bool {
	_, evicted, _ := strings.Cut(st.reign, ":")
	return st.over != nil && !st.said.replica && !st.said.promoted && evicted == st.said.evicted
}

// idChange is a new replication ID of a server of which this process does not know whether its reign goes on.
type idChange struct {
	id    string
	until clock.Instant
}

// idPatience is how long such a node is left to the processes that know: they check it every two seconds.
const idPatience = 5 * time.Second

// keepsReign reports whether a node whose reign seems over is not lost, or not yet. A process that saw the node admitted
// shortly before knows that its reign goes on, and notes the new replication ID. If that fails, the next check tries
// again. Another process leaves the node to those for a while, without an open link.
func (l *Locker) keepsReign(ctx context.Context, n *node, st nodeState) bool {
	if !st.renewable() {
		return false
	}
	if saw := n.saw.Load(); saw != nil && saw.reign == st.reign && !saw.at.Add(sightLasts).Passed() {
		if err := reignScript.Run(ctx, n.client, []string{n.keys.h}, st.incarnation, st.reign, st.said.reign()).Err(); err != nil {
			l.cfg.Logger.WarnContext(ctx, "failed to note a node's new replication id; the next check tries again", "node", n.name, "error", err)
		}
		return true
	}
	c := n.change.Load()
	if c == nil || c.id != st.said.replID {
		c = &idChange{st.said.replID, l.clock.Now().Add(idPatience)}
		n.change.Store(c)
	}
	if c.until.Passed() {
		return false
	}
	n.drop()
	return true
}

var reignScript = redis.NewScript(reignText)

// depose ends the incarnation of a node whose reign is over, for processes too that may not ask for INFO. After that
// nothing makes it look admitted, such as CONFIG RESETSTAT, which sets the number of evicted keys to 0. It returns the
// next incarnation, see [node.rename]; "": none.
func (l *Locker) depose(ctx context.Context, n *node, st nodeState) (string, error) {
	l.cfg.Logger.WarnContext(ctx, "node is lost", "node", n.name, "error", st.over)
	nonce := l.newNonce()
	err := n.rename(ctx, st.incarnation, nonce, st.reign)
	if redis.HasErrorPrefix(err, "OOM") { // a node that evicted may have no memory for it
		return "", n.client.HDel(ctx, n.keys.h, "@incarnation", "@pending", "@durable").Err()
	}
	return nonce, err
}
