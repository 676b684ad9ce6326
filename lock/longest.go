package lock

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
)

// LongestStore is an [EpochStore] that also stores the longest TTL in use. No node grants a TTL that is not recorded,
// so after the loss of a majority, or of the only node, a quarantine of that length is enough. A pgfence.Fence is
// one.
//
// A record never falls, but a new one with a higher number may begin, if the old one may be too low.
type LongestStore interface {
	EpochStore
	// RaiseLongest durably raises the record to at least atLeast, and returns it.
	RaiseLongest(ctx context.Context, group string, atLeast time.Duration) (fence.LongestTTL, error)
	// KeepLongest records whether all nodes of a group were admitted under a record.
	KeepLongest(ctx context.Context, group string, record int64, kept bool) error
}

// longest is a Locker's knowledge of the longest TTL in use.
type longest struct {
	store  LongestStore // nil: not recorded
	group  string       // identifies the nodes and their keys in the record
	seen   atomic.Int64 // TTL of the last valid record, ns; since then the highest of those that may be too low
	uneven atomic.Bool  // the nodes may grant less than the record
	turn   chan struct{}
	last   leveling
}

func (c *Config) longestStore() LongestStore {
	store, _ := c.Epochs.(LongestStore)
	if c.Embedded { // there is no quarantine
		return nil
	}
	return store
}

// groupName is the same for all Lockers with the same keys on the same nodes. A node with another name gives another
// group, whose record starts over.
func (c *Config) groupName() string {
	places := make([]string, len(c.Nodes))
	for i, n := range c.Nodes {
		places[i] = n.place()
	}
	slices.Sort(places)
	sum := sha256.Sum256([]byte(c.KeyPrefix + "\n" + strings.Join(places, "\n")))
	return hex.EncodeToString(sum[:16])
}

// steps are the recorded TTLs. There are few, so that few acquisitions have to write.
var steps = []time.Duration{
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute,
	time.Hour, 2 * time.Hour, 6 * time.Hour, 24 * time.Hour,
}

// step is the first of the steps that is not shorter than a TTL, and at most MaxTTL.
func (c *Config) step(ttl time.Duration) time.Duration {
	i, _ := slices.BinarySearch(steps, ttl)
	if i == len(steps) {
		return ttl
	}
	return max(ttl, min(steps[i], c.MaxTTL))
}

// recorded raises the record to a TTL, at least to the default TTL.
func (l *Locker) recorded(ctx context.Context, ttl time.Duration) (fence.LongestTTL, error) {
	record, err := l.longest.store.RaiseLongest(ctx, l.longest.group, l.cfg.step(max(ttl, l.cfg.DefaultTTL)))
	if err == nil && (record.TTL < ttl || record.Record <= 0) {
		err = fmt.Errorf("record %[2]d of the longest TTL has %[1]v, although %[3]v was recorded", record.TTL, record.Record, ttl)
	}
	if err != nil {
		return fence.LongestTTL{}, err
	}
	if record.Kept || int64(record.TTL) > l.longest.seen.Load() {
		l.longest.seen.Store(int64(record.TTL))
	}
	return record, nil
}

// maximum is the TTL that a node to be admitted may grant, and the number of its record; 0: none. A Locker without a
// store uses the values with which other nodes were admitted.
func (l *Locker) maximum(ctx context.Context, read fence.LongestTTL) (fence.LongestTTL, error) {
	if l.longest.store != nil && read.Record == 0 {
		return l.recorded(ctx, l.cfg.DefaultTTL)
	}
	if read.Record > 0 || l.cfg.Embedded {
		return fence.LongestTTL{TTL: cmp.Or(read.TTL, l.cfg.MaxTTL), Record: read.Record}, nil
	}
	var most fence.LongestTTL
	for _, st := range l.states(ctx) {
		switch {
		case !st.admitted || st.record < most.Record || st.record == 0:
		case st.record > most.Record:
			most = fence.LongestTTL{TTL: st.maxTTL, Record: st.record}
		default:
			most.TTL = max(most.TTL, st.maxTTL)
		}
	}
	if most.Record == 0 {
		most.TTL = l.cfg.MaxTTL
	}
	return most, nil
}

// levelTimeout bounds one call of level.
const levelTimeout = 5 * time.Second

// leveling is the result of the last call of level that was not cut short. The holder of turn owns it.
type leveling struct {
	begun time.Time
	ttl   time.Duration
	err   error
}

// level records a TTL, and then makes the nodes grant what is recorded. If a call for another caller began after this
// one, its result is used.
func (l *Locker) level(ctx context.Context, ttl time.Duration) error {
	called := time.Now()
	select {
	case l.longest.turn <- struct{}{}:
		defer func() { <-l.longest.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if last := l.longest.last; last.begun.After(called) && last.ttl >= ttl {
		return last.err
	}
	bounded, cancel := context.WithTimeout(ctx, levelTimeout)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	begun := time.Now()
	err := l.levelNodes(bounded, ttl)
	if ctx.Err() == nil {
		l.longest.last = leveling{begun, ttl, err}
	}
	return err
}

func (l *Locker) levelNodes(ctx context.Context, ttl time.Duration) error {
	record, err := l.recorded(ctx, ttl) // before any node hears of it
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotRecorded, err)
	}
	states := l.states(ctx)
	if most, later := beyond(states, record); most > 0 || later {
		// A newer record has begun, or PostgreSQL has lost a record that the nodes already have.
		if record, err = l.recorded(ctx, max(ttl, most)); err != nil {
			return fmt.Errorf("%w: %w", ErrNotRecorded, err)
		}
	}
	errs := make([]error, len(l.nodes))
	l.each(func(i int, n *node) { errs[i] = n.level(ctx, states[i], record.TTL) })
	failed := 0
	for _, err := range errs {
		if err != nil {
			failed++
		}
	}
	if failed > len(l.nodes)-l.quorum {
		return fmt.Errorf("have the nodes grant leases of %v: %w", record.TTL, errors.Join(errs...))
	}
	if err := l.keepLongest(ctx, record, states); err != nil || failed > 0 && !record.Kept {
		l.longest.uneven.Store(true)
	}
	return nil
}

// beyond is the longest TTL that nodes admitted under a record grant above it; later: a node has a later record.
func beyond(states []nodeState, record fence.LongestTTL) (most time.Duration, later bool) {
	for _, st := range states {
		if st.record == record.Record && st.maxTTL > record.TTL {
			most = max(most, st.maxTTL)
		}
		later = later || st.record > record.Record
	}
	return most, later
}

// level makes a node grant what is recorded.
func (n *node) level(ctx context.Context, st nodeState, ttl time.Duration) error {
	err := st.err
	switch {
	case err != nil:
	case !st.admitted:
		err = ErrQuarantined
	case st.maxTTL < ttl:
		err = n.longer(ctx, st.incarnation, ttl)
	}
	if err != nil {
		return &NodeError{Node: n.name, Err: err}
	}
	return nil
}

// keepLongest updates whether the record is valid, according to the nodes' states. If a node grants a longer TTL
// under it, that TTL was recorded before the node got it.
func (l *Locker) keepLongest(ctx context.Context, record fence.LongestTTL, states []nodeState) error {
	kept, foreign := true, false
	for _, st := range states {
		admitted := st.err == nil && st.admitted
		kept = kept && admitted && st.record == record.Record
		foreign = foreign || admitted && st.record != record.Record // admitted by a Locker without a store
	}
	if kept && !record.Kept || foreign && record.Kept {
		return l.longest.store.KeepLongest(ctx, l.longest.group, record.Record, kept)
	}
	return nil
}

// doubts reports whether what the nodes store, lost ones too, contradicts a record that was read after they were
// asked.
func doubts(states []nodeState, record fence.LongestTTL) bool {
	for _, st := range states {
		if st.err == nil && st.incarnation != "" && (st.record != record.Record || st.maxTTL > record.TTL) {
			return true
		}
	}
	return false
}

// even levels the nodes after one was admitted. If that fails, [Locker.watch] retries.
func (l *Locker) even(ctx context.Context) {
	if l.longest.store == nil {
		return
	}
	l.longest.uneven.Store(false)
	if err := l.level(ctx, l.cfg.DefaultTTL); err != nil {
		l.longest.uneven.Store(true)
	}
}

var longerScript = redis.NewScript(longerText)

// longer runs longer.lua.
func (n *node) longer(ctx context.Context, incarnation string, ttl time.Duration) error {
	done, err := longerScript.Run(ctx, n.client, []string{n.keys.h}, incarnation, ttl.Milliseconds()).Slice()
	switch {
	case err != nil:
		return serverError(err)
	case integer(done, 0) != 1:
		return errRace
	}
	return nil
}

// overMaxError: the TTL is longer than the nodes may grant. It is a [*fence.InvalidError].
type overMaxError struct{ ttl, most time.Duration }

func (e *overMaxError) invalid() *fence.InvalidError {
	return &fence.InvalidError{Field: "ttl", Reason: fmt.Sprintf(
		"is %v; the nodes grant at most %v, until a Locker with Config.Epochs has recorded a longer one", e.ttl, e.most)}
}

func (e *overMaxError) Error() string { return e.invalid().Error() }

func (e *overMaxError) Unwrap() error { return e.invalid() }

// longer makes the nodes grant a TTL that they refused as too long: nil, or why they can't.
func (l *Locker) longer(ctx context.Context, over *overMaxError) error {
	if l.longest.store == nil {
		return over
	}
	if err := l.level(ctx, over.ttl); err != nil {
		return fmt.Errorf("a TTL of %v is longer than any in use, %v, and has to be recorded first: %w", over.ttl, over.most, err)
	}
	return nil
}
