package lock

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// Patient is a node timeout for tests that are not about timeouts.
const Patient = 20 * time.Second

// EndPatience is how long a process may take to end its admission before others begin another one.
const EndPatience = endPatience

// Recheck is the minimum time between two checks by a waiter. Grace is how long the first of a queue has before
// others try.
const (
	Recheck = recheck / 2
	Grace   = grace
)

// ErrRace says that another admission of a node came between.
var ErrRace = errRace

// Validity is how long a lease with these options is valid.
func (l *Locker) Validity(opts ...AcquireOption) time.Duration {
	o, _ := l.options("r", opts)
	return l.validity(o.ttl)
}

// EndQuarantine ends a node's quarantine early.
func (l *Locker) EndQuarantine(ctx context.Context, node string) error {
	n, err := l.nodeNamed(node)
	if err != nil {
		return err
	}
	return n.client.Del(ctx, n.keys.q).Err()
}

// Waiting is how many callers of this Locker are in line for a resource.
func (l *Locker) Waiting(resource string) int {
	l.lines.mu.Lock()
	defer l.lines.mu.Unlock()
	if line := l.lines.of[resource]; line != nil {
		return len(line.waiters)
	}
	return 0
}

// Attempts is how many times this Locker asked the nodes for a lock.
func (l *Locker) Attempts() int64 { return l.attempts.Load() }

// Home is the index of the node that keeps a resource's queue.
func (l *Locker) Home(resource string) int { return l.home(resource) }

// ConfirmNothing makes phase 2 always succeed without checking the node, in the whole process: a safeguard removed.
// Call it before the nodes are admitted.
func ConfirmNothing() { confirmText = "-- @NONCE@\nreturn {1}" }

// AdmitAtOnce is Readmit without its quarantine: a safeguard removed.
func (l *Locker) AdmitAtOnce(ctx context.Context, node string) error {
	n, err := l.nodeNamed(node)
	if err != nil {
		return err
	}
	states := l.states(ctx)
	nonce := newID()
	if err := n.admitBegin(ctx, nonce, 0, states[n.index]); err != nil {
		return err
	}
	base, err := l.newBase(ctx, states, n)
	if err != nil {
		return err
	}
	return n.admit(ctx, nonce, base, fence.LongestTTL{TTL: l.cfg.MaxTTL})
}

// Forgive admits a node as if it had lost nothing, with the counters that it has left: the marker's safeguard
// removed.
func (l *Locker) Forgive(ctx context.Context, node string) error {
	n, err := l.nodeNamed(node)
	if err != nil {
		return err
	}
	st := n.state(ctx)
	if st.err != nil {
		return st.err
	}
	nonce := cmp.Or(st.incarnation, newID())
	for _, text := range boundTexts {
		if err := n.client.ScriptLoad(ctx, bindText(*text, nonce)).Err(); err != nil {
			return err
		}
	}
	return n.client.HSet(ctx, n.keys.h, "@incarnation", nonce, "@base", st.base, "@maxttl", l.cfg.MaxTTL.Milliseconds()).Err()
}

// Refusal is a node's refusal of an acquisition.
type Refusal struct {
	Holder      string
	PTTL, Floor int64
}

// HeldBy is the holder in the error of a round with these refusals.
func HeldBy(refusals ...Refusal) (holder string, pttl int64) {
	r := &round{}
	for i, f := range refusals {
		r.count(reply{node: i, holder: f.Holder, pttl: f.PTTL, floor: f.Floor})
	}
	return r.held.holder, r.held.pttl
}

// Extending reports whether an extension is in progress.
func (h *Lease) Extending() bool { return len(h.s.extending) > 0 }

// Waits is the holder of a resource, as far as this process's line for it knows.
func (l *Locker) Waits(resource string) (holder string) {
	l.lines.mu.Lock()
	defer l.lines.mu.Unlock()
	if line := l.lines.of[resource]; line != nil {
		if held, ok := errors.AsType[*leasing.HeldError](line.why); ok {
			return held.Holder
		}
	}
	return ""
}

// Aged makes an admission old enough for the other nodes to be asked.
func (l *Locker) Aged(a *Admission) { a.begun = a.begun.add(-2 * l.askAfter()) }

// Impatient ends the wait for another process's admission, and reports whether there was one.
func (l *Locker) Impatient(node string) bool {
	n, err := l.nodeNamed(node)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil || l.overdue[n.index].nonce == "" {
		return false
	}
	o := l.overdue[n.index]
	o.until = now()
	l.overdue[n.index] = o
	return true
}
