package lock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// listener receives the calls for this Locker's turns, by one subscription to each node with a queue that has this
// Locker. No lock of it is held while a node is asked.
type listener struct {
	mu sync.Mutex
	of map[*node]*subscription
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

// pingAfter is how long a subscription is silent before its node is asked for a sign of life.
const pingAfter = 3 * time.Second

// listen makes sure that this Locker is subscribed to the node's calls. It waits for that until the node is silent, as
// for any answer.
func (s *listener) listen(ctx context.Context, l *Locker, n *node) bool {
	sub := s.subscription(l, n)
	if sub == nil {
		return false
	}
	tick := time.NewTicker(l.cfg.NodeTimeout / looks)
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
func (s *listener) subscription(l *Locker, n *node) *subscription {
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
	if !l.inBackground(func() { s.receive(l, n, sub) }) {
		return nil
	}
	if s.of == nil {
		s.of = make(map[*node]*subscription)
	}
	s.of[n] = sub
	return sub
}

// lost records that a node does not answer.
func (s *listener) lost(n *node) {
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
func (s *listener) receive(l *Locker, n *node, sub *subscription) {
	defer s.set(sub, unsubscribed)
	k, err := n.subscribe(l.ctx, l.keys.wakePrefix+l.id, &sub.signs)
	if err != nil {
		s.lost(n)
		close(sub.tried)
		return
	}
	defer k.conn.Close()
	defer context.AfterFunc(l.ctx, func() { _ = k.conn.Close() })()
	s.set(sub, subscribed)
	close(sub.tried)
	for {
		vals, err := k.pushed(n.stall)
		switch {
		case err != nil:
			return
		case len(vals) == 3 && vals[0].text == "message":
			l.lines.Call(vals[2].text)
		}
	}
}

// subscribe makes a connection that receives what is published on a channel. signs counts the answers meanwhile.
func (n *node) subscribe(ctx context.Context, channel string, signs *atomic.Uint32) (*link, error) {
	k, err := dialLink(ctx, n.cfg, n.stall, signs)
	if err != nil {
		return nil, err
	}
	_ = k.conn.SetDeadline(time.Now().Add(n.stall))
	if _, err := k.do("SUBSCRIBE", channel); err != nil {
		_ = k.conn.Close()
		return nil, err
	}
	_ = k.conn.SetDeadline(time.Time{})
	return k, nil
}

// pushed waits for the next message of a subscription. A node that is silent is asked whether it still is there, and
// has the given time to answer.
func (k *link) pushed(within time.Duration) ([]value, error) {
	_ = k.conn.SetReadDeadline(time.Now().Add(pingAfter))
	if _, err := k.in.Peek(1); isTimeout(err) {
		_ = k.conn.SetDeadline(time.Now().Add(within))
		if _, err := k.conn.Write(appendBulk(appendHead(nil, 1), "PING")); err != nil {
			return nil, err
		}
	}
	_ = k.conn.SetReadDeadline(time.Now().Add(within))
	return k.reply()
}
