package lock

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencegate/fencegate/internal/leases"
	"github.com/fencegate/fencegate/lock/internal/admission"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// Bounds of the wait between two tries if no node keeps a queue.
const (
	firstWait = 2 * time.Millisecond
	maxWait   = 250 * time.Millisecond
)

// newsEvery is the minimum interval at which the first of a line asks for the current holder on behalf of later
// callers.
const newsEvery = 20 * time.Millisecond

// Bounds of the wait between two tries if too few nodes answered.
const (
	firstPause = 20 * time.Millisecond
	maxPause   = time.Second
)

// recheck is how often a waiter checks that it is still in its queue. unseen is how long a waiter that does not check
// stays at the head of a queue. grace is how long the first of a queue has before the others try too. homeDown is how
// long a node that failed keeps no queues.
const (
	recheck  = 1500 * time.Millisecond
	unseen   = 3 * time.Second
	grace    = 50 * time.Millisecond
	homeDown = time.Second
)

// place is a waiter's place in the queue of a resource, on its home node. No lock depends on it: losing a queue only
// costs time.
type place struct {
	l        *Locker
	resource string
	w        *leases.Waiter
	id       string
	home     *node.Node // has the waiter in its queue, or had
	failed   int        // tries in a row that found the resource held although its home was free
	missing  int        // tries that found no quorum
	useless  int        // calls in a row after which a try found the resource held
}

// homes is how many nodes may keep a resource's queue: the second one does while the first is down.
const homes = 2

// home is the node that keeps a resource's queue, chosen by a hash of its name. All Lockers of a group must agree on
// it.
func (l *Locker) home(resource string) int { return int(hashed(resource) % uint32(len(l.nodes))) }

// hashed is the FNV-1a hash of a name.
func hashed(resource string) uint32 {
	h := uint32(2166136261)
	for i := range len(resource) {
		h = (h ^ uint32(resource[i])) * 16777619
	}
	return h
}

// wakes reports whether a release on the node may have a waiter to wake; home is the resource's home.
func (l *Locker) wakes(home, node int) bool {
	return (node-home+len(l.nodes))%len(l.nodes) < homes
}

// wait blocks until a try is useful: the waiter was called, or it is the first and the lock has expired or is on too
// few nodes, or there is no queue and some time has passed.
func (p *place) wait(ctx context.Context, expires time.Duration) error {
	for looks := 0; ; looks++ {
		after, try := p.look(ctx, expires, looks)
		called, err := p.pass(ctx, after)
		switch {
		case err != nil:
			return err
		case called:
			return p.called(ctx)
		case try:
			p.useless = 0
			return nil
		}
	}
}

// called waits after a call, unless the call before it was of use. If the home has no lock of a resource that is held,
// a waiter's own tries get that node's lock and give it back, which calls the first of the queue: itself.
func (p *place) called(ctx context.Context) error {
	p.failed = 0
	if p.useless++; p.useless == 1 {
		return nil
	}
	return admission.Pause(ctx, p.l.dice.Between(firstWait, maxWait, p.useless-2))
}

// pass waits for after, or until the waiter is called.
func (p *place) pass(ctx context.Context, after time.Duration) (called bool, err error) {
	timer := time.NewTimer(after)
	defer timer.Stop()
	asked := p.w.News
	var news <-chan time.Time
	for {
		select {
		case <-p.w.Wake: // before all else that is ready
			return true, nil
		default:
		}
		select {
		case <-p.w.Wake:
			return true, nil
		case <-asked:
			asked, news = nil, time.After(newsEvery)
		case <-news:
			p.queue(ctx) // updates the line's current holder
			asked, news = p.w.News, nil
		case <-timer.C:
			return false, nil
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-p.l.life.Calls.Done():
			return false, ErrClosed
		}
	}
}

// look asks the home node when to look again, and whether to try then.
func (p *place) look(ctx context.Context, expires time.Duration, looks int) (after time.Duration, try bool) {
	pttl, rank, ok := p.queue(ctx)
	p.w.Queued.Store(ok)
	switch {
	case !ok:
		p.failed++
		backoff := p.backoff()
		if expires > 0 && expires < backoff {
			backoff = expires + p.l.dice.Random(firstWait) // the lock's own expiry is the best hint
		}
		return backoff, true
	case pttl >= 0 || pttl == -1: // held: wait for a release or the expiry
		p.failed = 0
		switch {
		case pttl >= 0 && pttl <= recheck:
			return pttl + p.l.dice.Random(firstWait), false
		case rank == 0 && looks > 0 && p.freeElsewhere(ctx):
			return p.l.dice.Random(firstWait), true
		}
		return recheck/2 + p.l.dice.Random(recheck/2), false
	case rank == 0:
		p.failed++
		return p.backoff() / 4, true
	}
	// The first of the queue was called. If it does nothing, it is frozen.
	return grace + time.Duration(rank)*grace/10, looks > 0
}

// freeElsewhere reports whether a quorum of nodes has no lock of the resource although the home has one: a release may
// have missed the home, or a lock was copied to it while its lease ended. Nobody wakes the first of the queue then.
func (p *place) freeElsewhere(ctx context.Context) bool {
	l := p.l
	others := l.all() &^ (1 << p.home.Index)
	if others == 0 {
		return false
	}
	if l.ask(ctx) != nil {
		return false
	}
	defer l.answered()
	until := l.clock.Now().Add(recheck / 2) // before the next look
	r := l.newRound(node.OpHas, "look", p.resource)
	defer r.drop()
	r.send(others, node.Ask{Expires: until.Time()})
	_ = r.within(ctx, until)
	return r.no >= l.quorum
}

// pause waits before the next try after too few nodes answered.
func (p *place) pause(ctx context.Context) error {
	p.missing++
	timer := time.NewTimer(p.l.dice.Between(firstPause, maxPause, p.missing-1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-p.l.life.Calls.Done():
		return ErrClosed
	}
}

// backoff is a random time that grows with the failures in a row.
func (p *place) backoff() time.Duration { return p.l.dice.Between(firstWait, maxWait, p.failed-1) }

// queue joins or checks the queue on the first home that answers. A home that is silent or refuses is passed over by
// all of this Locker's waiters for a while.
func (p *place) queue(ctx context.Context) (pttl time.Duration, rank int64, ok bool) {
	l := p.l
	for i := range min(homes, len(l.nodes)) {
		n := l.nodes[(l.home(p.resource)+i)%len(l.nodes)]
		if !l.listener.listen(ctx, n) {
			continue
		}
		pttl, rank, ok = p.queueOn(ctx, n)
		switch {
		case ok:
			if p.home != nil && p.home != n {
				p.leaveQueue(p.home)
			}
			p.home = n
			return pttl, rank, true
		case ctx.Err() == nil:
			l.listener.lost(n)
		}
	}
	return 0, 0, false
}

// queueOn joins or checks the queue on a node. The look is an op on the node's connection: it waits in line with the
// acquisitions and releases there, and as patiently.
func (p *place) queueOn(ctx context.Context, n *node.Node) (pttl time.Duration, rank int64, ok bool) {
	l := p.l
	if p.id == "" {
		p.id = l.id + ":" + strconv.FormatInt(l.places.Add(1), 36)
	}
	if l.ask(ctx) != nil {
		return 0, 0, false
	}
	defer l.answered()
	r := l.newRound(node.OpLook, "look", p.resource)
	defer r.drop()
	r.send(1<<n.Index, node.Ask{Owner: p.id, TTL: unseen.Milliseconds(), Expires: time.Now().Add(l.roundLimit())})
	_ = r.wait(ctx)
	if r.no == 0 {
		sent := r.may != 0 || r.pending != 0 && !r.ops[n.Index].Abandon()
		if sent && p.home != n {
			p.leaveQueue(n) // it may be in the queue there
		}
		return 0, 0, false
	}
	if r.refusal.pttl < 0 {
		return time.Duration(r.refusal.pttl), r.refusal.floor, true
	}
	pttl = time.Duration(r.refusal.pttl) * time.Millisecond
	p.w.HeldBy(r.refusal.holder, pttl)
	return pttl, r.refusal.floor, true
}

// leave gives up the place, in the background.
func (p *place) leave() {
	if p.home != nil {
		p.leaveQueue(p.home)
	}
}

// leaveQueue leaves the queue on a node, and does not wait. If the node does not get it, the next caller there finds
// that this waiter is gone.
func (p *place) leaveQueue(n *node.Node) {
	r := p.l.newRound(node.OpLeave, "leave", p.resource)
	defer r.drop()
	r.over = true
	r.send(1<<n.Index, node.Ask{Owner: p.id, Expires: time.Now().Add(unseen)})
}

// listener receives the calls for this Locker's turns, by one subscription to each node with a queue that has this
// Locker. No lock of it is held while a node is asked.
type listener struct {
	l  *Locker
	mu sync.Mutex
	of map[*node.Node]*subscription
}

// subscription is one to a node's calls, or the last attempt to make one.
type subscription struct {
	tried chan struct{} // closed when the attempt has ended
	signs atomic.Uint32 // signs of life during the attempt
	state subscriptionState
	down  time.Time // the node is not asked until then
}

type subscriptionState int

const (
	subscribing subscriptionState = iota
	subscribed
	unsubscribed
)

// listen makes sure that this Locker is subscribed to the node's calls. It waits for that until the node is silent, as
// for any answer.
func (s *listener) listen(ctx context.Context, n *node.Node) bool {
	sub := s.subscription(n)
	if sub == nil {
		return false
	}
	tick := time.NewTicker(s.l.cfg.NodeTimeout / looks)
	defer tick.Stop()
	for q := newQuiet(&sub.signs); ; {
		select {
		case <-sub.tried:
			s.mu.Lock()
			defer s.mu.Unlock()
			return sub.state == subscribed
		case <-tick.C:
			if q.silent() {
				s.lost(n)
				return false
			}
		case <-ctx.Done():
			return false
		}
	}
}

// subscription is the one to a node, which it begins to make if there is none. nil: the node is down, or the Locker is
// closed.
func (s *listener) subscription(n *node.Node) *subscription {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub := s.of[n]
	switch {
	case sub != nil && time.Now().Before(sub.down):
		return nil
	case sub != nil && sub.state != unsubscribed:
		return sub
	}
	sub = &subscription{tried: make(chan struct{})}
	if !s.l.life.InBackground(func(context.Context) { s.receive(n, sub) }) {
		return nil
	}
	if s.of == nil {
		s.of = make(map[*node.Node]*subscription)
	}
	s.of[n] = sub
	return sub
}

// lost records that a node does not answer.
func (s *listener) lost(n *node.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub := s.of[n]; sub != nil {
		sub.down = time.Now().Add(homeDown)
	}
}

// set records how far a subscription is.
func (s *listener) set(sub *subscription, state subscriptionState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub.state = state
}

// receive subscribes, and forwards the calls until the connection ends or the Locker is closed. After that the next
// waiter subscribes again.
func (s *listener) receive(n *node.Node, sub *subscription) {
	defer s.set(sub, unsubscribed)
	k, err := n.Subscribe(s.l.life.Calls, s.l.group.Keys.WakePrefix+s.l.id, &sub.signs)
	if err != nil {
		s.lost(n)
		close(sub.tried)
		return
	}
	defer k.Conn.Close()
	defer context.AfterFunc(s.l.life.Calls, func() { _ = k.Conn.Close() })()
	s.set(sub, subscribed)
	close(sub.tried)
	for {
		vals, err := k.Pushed(n.Stall)
		switch {
		case err != nil:
			return
		case len(vals) == 3 && vals[0].Text == "message":
			s.l.lines.Call(vals[2].Text)
		}
	}
}
