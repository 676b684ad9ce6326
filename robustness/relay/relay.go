// Package relay stands between processes on loopback and does to their
// connections what networks do.
//
// The guarantee: a relay carries bytes unchanged and in order until a fault is
// switched on; faults may be switched at any moment and combined; [Relay.Heal]
// ends all of them; after [Relay.Close] no goroutine and no connection is left.
//
//	var net relay.Net
//	defer net.Close()
//	r, err := net.Between("client 7", "redis 1", "127.0.0.1:6379")
//	r.Hold(relay.Replies, true) // half open: what is asked arrives, nobody hears of it
//	r.Heal()
package relay

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Direction is a way through a relay.
type Direction int

// The directions.
const (
	Requests Direction = iota // from the client to the server
	Replies                   // from the server to the client
)

// Relay is one address that leads to a server. Its methods are safe for concurrent use.
type Relay struct {
	From, To string

	listener net.Listener
	ctx      context.Context
	stop     context.CancelFunc
	running  sync.WaitGroup

	ways    [2]way
	refuse  atomic.Bool
	barred  atomic.Bool
	absorb  gate
	cutters cutters
	carried [2]atomic.Int64

	mu     sync.Mutex
	server string
	conns  map[*pair]struct{}
}

// way is what happens to one direction.
type way struct {
	held   gate
	delay  atomic.Int64
	jitter atomic.Int64
}

// New starts a relay to a server on a free port of loopback.
func New(server string) (*Relay, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &Relay{listener: listener, ctx: ctx, stop: stop, server: server, conns: map[*pair]struct{}{}}
	r.running.Go(r.accept)
	return r, nil
}

// Addr is where clients connect to.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// Server is where new connections lead.
func (r *Relay) Server() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.server
}

// Retarget leads new connections to another address. Those that are open stay.
func (r *Relay) Retarget(server string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.server = server
}

// Delay lets each message of a direction come later by d and up to jitter more.
func (r *Relay) Delay(dir Direction, d, jitter time.Duration) {
	r.ways[dir].delay.Store(int64(d))
	r.ways[dir].jitter.Store(int64(jitter))
}

// Hold lets nothing pass in a direction, ends of connections included. The
// connections stay, and what was held goes on afterwards.
func (r *Relay) Hold(dir Direction, on bool) { r.ways[dir].held.set(on) }

// Refuse resets each new connection.
func (r *Relay) Refuse(on bool) { r.refuse.Store(on) }

// Bar cuts all connections and resets each new one, as an operator does who takes an address away. It is no fault:
// Heal leaves it.
func (r *Relay) Bar(on bool) {
	r.barred.Store(on)
	if on {
		r.Cut()
	}
}

// Absorb takes new connections and leads them nowhere, until it is off: those of before then go on.
func (r *Relay) Absorb(on bool) { r.absorb.set(on) }

// Cut resets all connections and says how many there were.
func (r *Relay) Cut() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.conns {
		p.reset()
	}
	return len(r.conns)
}

// CutBefore cuts the connection of each of the next n requests before it reaches the server.
func (r *Relay) CutBefore(n int) { r.cutters.messages[Requests].Store(int64(n)) }

// CutAfter cuts the connection of each of the next n replies: the server has
// answered, and the client never hears of it.
func (r *Relay) CutAfter(n int) { r.cutters.messages[Replies].Store(int64(n)) }

// CutBody cuts the next n connections that carry more than k further bytes in
// the direction, each after the k-th byte.
func (r *Relay) CutBody(dir Direction, k int64, n int) { r.cutters.armBody(dir, k, n) }

// Pending is how many of the cuts that were armed are still to come.
func (r *Relay) Pending() int { return r.cutters.pending() }

// Carried is how many bytes went through in a direction.
func (r *Relay) Carried(dir Direction) int64 { return r.carried[dir].Load() }

// Connections is how many are open.
func (r *Relay) Connections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.conns)
}

// Heal ends every fault. Connections that are open stay.
func (r *Relay) Heal() {
	r.cutters.disarm()
	r.refuse.Store(false)
	for _, dir := range []Direction{Requests, Replies} {
		r.Delay(dir, 0, 0)
		r.Hold(dir, false)
	}
	r.Absorb(false)
}

// Close ends all connections and returns when nothing of the relay runs any more.
func (r *Relay) Close() error {
	r.stop()
	err := r.listener.Close()
	r.Cut()
	r.running.Wait()
	return err
}

func (r *Relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			if r.ctx.Err() != nil {
				return
			}
			continue // such as too many open files: the next may do
		}
		if r.refuse.Load() || r.barred.Load() {
			reset(client)
			continue
		}
		r.running.Go(func() { r.carry(client) })
	}
}

// lateness draws how much later a message comes.
func (w *way) lateness() time.Duration {
	late := time.Duration(w.delay.Load())
	if jitter := w.jitter.Load(); jitter > 0 {
		late += time.Duration(rand.Int64N(jitter))
	}
	return late
}

// pass waits until the message may go on; false: the relay ends, or the connection.
func (w *way) pass(ctx context.Context) bool {
	if late := w.lateness(); late > 0 {
		timer := time.NewTimer(late)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return false
		}
	}
	return w.held.pass(ctx)
}
