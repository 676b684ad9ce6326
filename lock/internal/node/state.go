package node

import (
	"cmp"
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
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
// [Locker.SetMaxTTL] changes them.
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
