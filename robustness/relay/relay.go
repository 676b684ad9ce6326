// Package relay proxies connections between processes on loopback and injects network faults.
//
// The guarantee: without faults a relay carries bytes unchanged and in order. Faults may be switched at any moment and
// combined. [Relay.Heal] ends all of them. After [Relay.Close] no goroutine and no connection is left.
//
//	var net relay.Net
//	defer net.Close()
//	r, err := net.Between("client 7", "redis 1", "127.0.0.1:6379")
//	r.Hold(relay.Replies, true) // half open: requests arrive, and replies do not
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

// Direction is a direction through a relay.
type Direction int

// The directions.
const (
	Requests Direction = iota // from the client to the server
	Replies                   // from the server to the client
)

// Relay is one address that leads to a server. Its methods are safe for concurrent use.
type Relay struct {
	From, To string
	Source   net.IP // where its connections to the server come from; nil: anywhere. Set before the first

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

// way holds the faults of one direction.
type way struct {
	gate   gate
	delay  atomic.Int64
	jitter atomic.Int64
}

// New starts a relay to a server on a free loopback port.
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

// Addr is the address for clients.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// Server is the target of new connections.
func (r *Relay) Server() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.server
}

// Retarget changes the target of new connections. Open connections stay.
func (r *Relay) Retarget(server string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.server = server
}

// Delay delays each message of a direction by d plus up to jitter.
func (r *Relay) Delay(dir Direction, d, jitter time.Duration) {
	r.ways[dir].delay.Store(int64(d))
	r.ways[dir].jitter.Store(int64(jitter))
}

// Hold lets nothing pass in a direction, EOFs included. The connections stay, and held data passes afterwards.
func (r *Relay) Hold(dir Direction, on bool) { r.ways[dir].gate.set(on) }

// Refuse resets each new connection.
func (r *Relay) Refuse(on bool) { r.refuse.Store(on) }

// Bar cuts all connections and resets each new one, as when an
// operator removes an address. It is no fault: Heal leaves it.
func (r *Relay) Bar(on bool) {
	r.barred.Store(on)
	if on {
		r.Cut()
	}
}

// Absorb accepts new connections without connecting them to the server, until it is called with false. Earlier
// connections are not affected.
func (r *Relay) Absorb(on bool) { r.absorb.set(on) }

// Cut resets all connections and returns their number.
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

// CutAfter cuts the connection of each of the next n replies:
// the server has answered, and the client does not receive it.
func (r *Relay) CutAfter(n int) { r.cutters.messages[Replies].Store(int64(n)) }

// CutBody cuts the next n connections that carry more than k further bytes in the direction, each after the k-th byte.
func (r *Relay) CutBody(dir Direction, k int64, n int) { r.cutters.armBody(dir, k, n) }

// Pending is how many armed cuts are left.
func (r *Relay) Pending() int { return r.cutters.pending() }

// Carried is how many bytes passed in a direction.
func (r *Relay) Carried(dir Direction) int64 { return r.carried[dir].Load() }

// Connections is the number of open connections.
func (r *Relay) Connections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.conns)
}

// Heal ends every fault. Open connections stay.
func (r *Relay) Heal() {
	r.cutters.disarm()
	r.refuse.Store(false)
	for _, dir := range []Direction{Requests, Replies} {
		r.Delay(dir, 0, 0)
		r.Hold(dir, false)
	}
	r.Absorb(false)
}

// Close closes all connections and returns when all goroutines have ended.
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
			continue // for example too many open files: the next accept may succeed
		}
		if r.refuse.Load() || r.barred.Load() {
			reset(client)
			continue
		}
		r.running.Go(func() { r.carry(client) })
	}
}

// lateness draws the delay of a message.
func (w *way) lateness() time.Duration {
	late := time.Duration(w.delay.Load())
	if jitter := w.jitter.Load(); jitter > 0 {
		late += time.Duration(rand.Int64N(jitter))
	}
	return late
}

// pass waits until the message may pass; false: the relay or the connection has ended.
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
	return w.gate.pass(ctx)
}
