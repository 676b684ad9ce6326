package node

import (
	"cmp"
	"fmt"
	"strings"
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
	Replica       bool
	limit, policy string // maxmemory and maxmemory-policy
	ReplicationID string // "": not known, like evicted
	Promoted      bool   // it has the history of another replication ID
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
			a.Replica = value == "slave"
		case "master_replid":
			a.ReplicationID = value
		case "master_replid2":
			a.Promoted = strings.Trim(value, "0") != ""
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
	return readAccount(vals[0].Text), nil
}

// Reign is what admit.lua notes; "": unknown.
func (a account) Reign() string {
	if a.ReplicationID == "" || a.evicted == "" {
		return ""
	}
	return a.ReplicationID + ":" + a.evicted
}

// Unfit says why a server grants nothing at present; nil: it may. Without a memory limit it evicts nothing, whatever
// its policy.
func (a account) Unfit() error {
	switch {
	case a.Replica:
		return errReplica
	case a.limit == "" || a.limit == "0" || a.policy == "" || a.policy == "noeviction":
		return nil
	}
	return fmt.Errorf("%w: its policy is %s, and its limit %s bytes", ErrEvicts, a.policy, a.limit)
}

// over says why the reign that an admission noted is over; nil: it goes on, or nobody can tell.
func (a account) over(noted string) error {
	switch id, _, _ := strings.Cut(noted, ":"); {
	case noted == "" || a.Reign() == "" || a.Reign() == noted:
		return nil
	case id != a.ReplicationID:
		return errPromoted
	}
	return errEvicted
}

// Renewable reports whether a reign that seems over may go on. A server also draws a replication ID when it gets its
// first replica (redis-cli --rdb is one), and when it has had none for repl-backlog-ttl. It has no history of another
// ID then, and neither has a promoted server after repl-backlog-ttl.
func (st *State) Renewable() bool {
	_, evicted, _ := strings.Cut(st.Reign, ":")
	return st.Over != nil && !st.Said.Replica && !st.Said.Promoted && evicted == st.Said.evicted
}
