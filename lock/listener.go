package lock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencegate/fencegate/lock/internal/node"
)

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
