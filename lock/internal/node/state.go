package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
)

// State is a node's own description of its state.
type State struct {
	Err         error
	Admitted    bool   // marker and scripts of the same incarnation are there
	Incarnation string // may be set although the node is not admitted: it was restarted
	Durable     bool   // it was declared durable, and its settings were, when it was admitted
	Pending     string // the admission that has begun
	Void        bool   // the node was restarted since it began
	HasBase     bool
	Base        int64
	Promised    int64 // the highest epoch that it was promised, if the nodes keep the epoch
	Limits      Limits
	Change      string // the last change of the limits
	Stored      bool   // a store outside of the nodes keeps the epoch
	Counters    int64
	Reign       string        // as the admission noted it
	Said        account       // what the server says of itself
	Over        error         // why the reign of its incarnation, whose scripts it has, is over; nil: it is not
	Locks       bool          // read only if there is no incarnation
	Emptied     bool          // likewise: it may have granted leases in this run
	Quarantine  time.Duration // 0: none
	RTT         time.Duration
	Clock       time.Duration // ahead of this machine's
	HasClock    bool
}

// markerFields is how many fields of H describe the node's state; the others are counters.
const markerFields = 11

// Read reads the node's marker and looks for its scripts.
func (n *Node) Read(ctx context.Context) State {
	ctx, cancel := context.WithTimeout(ctx, StallTimeout)
	defer cancel()
	var st State
	begun := time.Now()
	var marker *redis.SliceCmd
	var fields *redis.IntCmd
	var quarantine *redis.DurationCmd
	var info *redis.StringCmd
	var clock *redis.TimeCmd
	_, failed := n.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		marker = p.HMGet(ctx, n.keys.H, "@incarnation", "@base", "@maxttl", "@pending", "@note", "@reign", "@epoch", "@longest", "@durable", "@stored", "@change")
		fields = p.HLen(ctx, n.keys.H)
		quarantine = p.PTTL(ctx, n.keys.Q)
		clock, info = p.Time(ctx), p.Info(ctx, accountSections...)
		return nil
	})
	err := cmp.Or(marker.Err(), fields.Err(), quarantine.Err()) // the time may be refused, and so may INFO
	if err == nil && n.Server.Watched {
		err = info.Err()
	}
	if err == nil && clock.Err() == nil && info.Err() == nil {
		err = failed
	}
	if err == nil && len(marker.Val()) != markerFields {
		err = errMalformed
	}
	if err != nil {
		return State{Err: ServerError(err)}
	}
	st.RTT = time.Since(begun)
	if st.HasClock = clock.Err() == nil; st.HasClock {
		st.Clock = clock.Val().Sub(begun.Add(st.RTT / 2))
	}
	st.mark(marker.Val(), fields.Val())
	st.Quarantine = max(0, quarantine.Val())
	if err = n.readRun(ctx, &st); err != nil {
		return State{Err: ServerError(err)}
	}
	st.Said = readAccount(info.Val())
	st.Err = st.Said.Unfit()
	if st.Admitted {
		st.Over = st.Said.over(st.Reign)
		st.Admitted = st.Err == nil && st.Over == nil
	}
	return st
}

// readRun looks for what a restart removes: the scripts of the node's incarnation, or of the admission that has
// begun.
func (n *Node) readRun(ctx context.Context, st *State) (err error) {
	if st.Incarnation == "" {
		if st.Locks, err = n.hasLocks(ctx); err == nil {
			st.Emptied, err = n.hasTrace(ctx)
		}
	} else {
		st.Admitted, err = n.hasScripts(ctx, st.Incarnation)
	}
	if err == nil && !st.Admitted && st.Pending != "" {
		var alive bool
		alive, err = n.hasScripts(ctx, st.Pending)
		st.Void = !alive
	}
	return err
}

// mark sets the state from the node's hash: its marker, and the number of all its fields.
func (st *State) mark(marker []any, fields int64) {
	st.Counters = fields
	for _, v := range marker {
		if v != nil {
			st.Counters--
		}
	}
	st.Incarnation, _ = marker[0].(string)
	st.Pending, _ = marker[3].(string)
	st.Reign, _ = marker[5].(string)
	if text, ok := marker[1].(string); ok {
		st.HasBase = true
		st.Base = number(text)
	}
	st.Limits = Limits{milliseconds(marker[2]), milliseconds(marker[7])}
	if text, ok := marker[6].(string); ok {
		st.Promised = number(text)
	}
	st.Durable, st.Stored = marker[8] != nil, marker[9] != nil
	st.Change, _ = marker[10].(string)
}

// milliseconds is a field that holds a time; 0: it is missing.
func milliseconds(field any) time.Duration {
	text, _ := field.(string)
	return time.Duration(number(text)) * time.Millisecond
}

func (n *Node) hasScripts(ctx context.Context, nonce string) (bool, error) {
	b := Bind(nonce)
	found, err := n.client.ScriptExists(ctx, b.sha[:]...).Result()
	if err != nil {
		return false, err
	}
	for _, ok := range found {
		if !ok {
			return false, nil
		}
	}
	return true, nil
}

func (n *Node) hasTrace(ctx context.Context) (bool, error) {
	found, err := n.client.ScriptExists(ctx, shaOf(n.keys.trace(n.Server.DB))).Result()
	return err == nil && len(found) == 1 && found[0], err
}

func (n *Node) hasLocks(ctx context.Context) (bool, error) {
	scan := n.client.Scan(ctx, 0, globQuote(n.keys.lockPrefix)+"*", 1000).Iterator()
	found := scan.Next(ctx)
	return found, scan.Err()
}

func number(text string) int64 {
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// Limits are the longest TTL that nodes grant, and the longest that a lease may still have. They differ while
// admin.Admin.SetMaxTTL changes them.
type Limits struct{ Granted, Longest time.Duration }

func (a Limits) Or(b Limits) Limits {
	return Limits{max(a.Granted, b.Granted), max(a.Longest, b.Longest)}
}

// State reads a node's state. A node that is marked for the other mode is an error.
func (n *Node) State(ctx context.Context) State {
	st := n.Read(ctx)
	if st.Err == nil && st.Incarnation != "" {
		if err := n.Server.checkMode(st.Incarnation); err != nil {
			return State{Err: err}
		}
	}
	return st
}

// Confirm reports whether the node is still admitted in a known incarnation, its limits, and its reign. It is the cheap
// check: one round trip.
func (n *Node) Confirm(ctx context.Context, b *Bound) (is bool, now Limits, reign string) {
	ctx, cancel := context.WithTimeout(ctx, StallTimeout)
	defer cancel()
	var marker *redis.SliceCmd
	var scripts *redis.BoolSliceCmd
	var info *redis.StringCmd
	_, _ = n.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		marker = p.HMGet(ctx, n.keys.H, "@incarnation", "@maxttl", "@longest", "@reign")
		scripts = p.ScriptExists(ctx, b.sha[OpAcquire])
		info = p.Info(ctx, accountSections...) // may be refused
		return nil
	})
	if fields := marker.Val(); len(fields) == 4 && len(scripts.Val()) == 1 {
		reign, _ = fields[3].(string)
		now = Limits{milliseconds(fields[1]), milliseconds(fields[2])}
		said := readAccount(info.Val())
		is = fields[0] == any(b.nonce) && scripts.Val()[0] && said.Unfit() == nil && said.over(reign) == nil
	}
	return is, now, reign
}

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

// Lister is an [EpochStore] that also has the fences, as a pgfence.Fence does.
type Lister interface {
	List(ctx context.Context, prefix, after string, limit int) ([]fence.Record, error)
}

// settings are the settings with which a server keeps everything that it acknowledged across a crash.
var settings = []struct{ name, value string }{
	{"appendonly", "yes"}, {"appendfsync", "always"}, {"no-appendfsync-on-rewrite", "no"},
}

// Durability says why a server may lose what it acknowledged; nil: its settings are durable.
func (n *Node) Durability(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, StallTimeout)
	defer cancel()
	for _, s := range settings {
		is, err := n.client.ConfigGet(ctx, s.name).Result()
		if err != nil {
			return fmt.Errorf("read its %s: %w", s.name, ServerError(err))
		}
		if is[s.name] != s.value {
			return fmt.Errorf("its %s is %q, and must be %q", s.name, is[s.name], s.value)
		}
	}
	said, err := n.client.Info(ctx, "persistence").Result()
	if err != nil {
		return fmt.Errorf("read the state of its append-only file: %w", ServerError(err))
	}
	if !strings.Contains(said, "aof_last_write_status:ok") {
		return errors.New("its append-only file could not be written")
	}
	return nil
}

const (
	fencePage = 1000
	// fencesWithin bounds the reading of all fences. It is much shorter than a quarantine.
	fencesWithin = 10 * time.Second
)

// Above returns an error if a fence stands above the node's counter: the node was restored from an older copy.
func (n *Node) Above(ctx context.Context, store Lister, base int64) error {
	ctx, cancel := context.WithTimeout(ctx, fencesWithin)
	defer cancel()
	for after := ""; ; {
		page, err := store.List(ctx, "", after, fencePage)
		if err != nil || len(page) == 0 {
			return err
		}
		fields := make([]string, len(page))
		for i, record := range page {
			fields[i] = counterField(record.Resource)
		}
		counters, err := n.client.HMGet(ctx, n.keys.H, fields...).Result()
		switch {
		case err != nil:
			return ServerError(err)
		case len(counters) != len(page):
			return errMalformed
		}
		for i, record := range page {
			text, _ := counters[i].(string)
			if counted := max(number(text), base); int64(record.Token) > counted {
				return fmt.Errorf("its counter for %q is %d, below the fence's %d: it was restored from an older copy", record.Resource, counted, record.Token)
			}
		}
		after = page[len(page)-1].Resource
	}
}

// durableMark is the mark that admission sets on a node that is declared durable and has durable settings.
func (n *Node) durableMark(ctx context.Context) string {
	if n.Server.Durable && n.Durability(ctx) == nil {
		return "durable"
	}
	return ""
}

// Warning says what an operator should change about a node.
func (n *Node) Warning(ctx context.Context, st State) string {
	switch {
	case st.Err != nil:
	case st.Over != nil:
		return st.Over.Error()
	case n.Server.Watched && !st.Said.guarded:
		return unguarded
	case n.Server.Durable:
		if err := n.Durability(ctx); err != nil {
			return "it is declared durable, but " + err.Error()
		}
	}
	return ""
}

const unguarded = "its primary accepts writes while no replica is near: cut off from its Sentinels it would go on granting beside its successor; set min-replicas-to-write"
