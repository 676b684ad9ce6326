package lock_test

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
)

// simConn is one connection of a Locker to a node. Its name does not depend on the scheduler: kind says which part of
// the Locker made it, and number how many of the kind came before.
type simConn struct {
	locker, node, number int
	kind                 byte // o: ops, s: subscription, c: client
}

func (c *simConn) compare(d *simConn) int {
	return cmp.Or(cmp.Compare(c.locker, d.locker), cmp.Compare(c.node, d.node), cmp.Compare(c.kind, d.kind), cmp.Compare(c.number, d.number))
}

// simMessage was written to a connection and is on its way.
type simMessage struct {
	conn  *simConn
	reply bool
	*memredis.Message
}

// dialer connects a Locker to a node through the simulated network.
func (s *sim) dialer(locker, node int) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		c := &simConn{locker: locker, node: node, kind: dialedBy()}
		carry := func(reply bool) func(*memredis.Message) {
			return func(m *memredis.Message) {
				s.mu.Lock()
				s.posted = append(s.posted, simMessage{c, reply, m})
				s.mu.Unlock()
				s.notify()
			}
		}
		conn, err := s.nodes[node].DialCarried(ctx, carry(false), carry(true))
		if err == nil {
			s.mu.Lock()
			key := simConn{locker, node, 0, c.kind}
			s.dialed[key]++
			c.number = s.dialed[key]
			s.mu.Unlock()
		}
		return conn, err
	}
}

func dialedBy() byte {
	pcs := make([]uintptr, 24)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	for {
		f, more := frames.Next()
		switch {
		case strings.HasSuffix(f.Function, "lock.(*node).connect"):
			return 'o'
		case strings.HasSuffix(f.Function, "lock.(*node).subscribe"):
			return 's'
		case !more:
			return 'c'
		}
	}
}

// notify wakes the simulator: something has happened.
func (s *sim) notify() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

// send puts what was written since the last look on its way. Messages of one moment on one connection travel together.
func (s *sim) send() {
	s.mu.Lock()
	posted := s.posted
	s.posted = nil
	s.mu.Unlock()
	slices.SortStableFunc(posted, func(a, b simMessage) int {
		return cmp.Or(a.conn.compare(b.conn), compareBool(a.reply, b.reply))
	})
	for len(posted) > 0 {
		n := 1
		for n < len(posted) && posted[n].conn == posted[0].conn && posted[n].reply == posted[0].reply {
			n++
		}
		s.route(posted[:n:n])
		posted = posted[n:]
	}
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// route decides when messages arrive, and whether they do.
func (s *sim) route(ms []simMessage) {
	s.counts.messages += len(ms)
	s.flying++
	after := s.latency()
	lost := !s.healed && s.chance(s.plan.lose)
	if lost || after > simSlow {
		s.faulty(after)
	}
	s.after(after, func() { s.arrive(ms, lost) })
}

// latency draws how long a message is on its way.
func (s *sim) latency() time.Duration {
	d := s.plan.latency/2 + s.upTo(s.plan.latency)
	switch {
	case s.healed:
	case s.chance(s.plan.slower):
		d = simSlow + s.upTo(1500*time.Millisecond)
	case s.chance(s.plan.slow):
		d = s.upTo(simSlow)
	}
	return d
}

// simSlow is what a slow message takes at most. It is somewhat more than a node timeout.
const simSlow = 70 * time.Millisecond

// arrive delivers messages, unless something holds them.
func (s *sim) arrive(ms []simMessage, lost bool) {
	c := ms[0].conn
	n, l := s.nodes[c.node], s.lockers[c.locker]
	switch now := time.Now(); {
	case now.Before(l.cutOff):
		s.at(l.cutOff, func() { s.arrive(ms, lost) })
		return
	case !ms[0].reply && now.Before(n.frozen):
		s.at(n.frozen, func() { s.arrive(ms, lost) })
		return
	}
	s.flying--
	way, what := '>', ""
	if ms[0].reply {
		way = '<'
	}
	if lost {
		what = " lost"
	}
	s.logf("l%d %c%d %c n%d%s: %s", c.locker, c.kind, c.number, way, c.node, what, gist(ms))
	if lost {
		ms[0].Lose()
		return
	}
	for _, m := range ms {
		m.Deliver()
	}
}

// gist is what messages say, without what is random in it: IDs, which decide nothing.
func gist(ms []simMessage) string {
	var text []byte
	for _, m := range ms {
		text = append(text, m.Bytes()...)
	}
	gist := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		hex := i
		for hex < len(text) && (text[hex] >= '0' && text[hex] <= '9' || text[hex] >= 'a' && text[hex] <= 'f') {
			hex++
		}
		switch {
		case hex-i >= 32:
			gist = append(gist, '#')
			i = hex - 1
			for i+1 < len(text) && text[i+1] > ' ' { // a waiter's number, or a holder's name
				i++
			}
		case text[i] == '\r':
		case text[i] == '\n':
			gist = append(gist, ' ')
		case text[i] == '$': // a length
			for i+1 < len(text) && text[i+1] != '\n' {
				i++
			}
			i++
		default:
			gist = append(gist, text[i])
		}
		if len(gist) > simGist {
			return fmt.Sprintf("%s… %d bytes", gist, len(text))
		}
	}
	return string(gist)
}

// simGist is how much of a message the trace has.
const simGist = 200

// event is something that the simulator does at a time.
type event struct {
	at  time.Time
	seq int
	do  func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at.Before(e[j].at) || e[i].at.Equal(e[j].at) && e[i].seq < e[j].seq
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}

// at has the simulator do something at a time, after keeps it for a while.
func (s *sim) at(t time.Time, do func()) {
	s.seq++
	heap.Push(&s.events, event{t, s.seq, do})
}

func (s *sim) after(d time.Duration, do func()) { s.at(time.Now().Add(d), do) }

// tracer notes when the steps of a call begin.
type simTracer struct{}

var _ lock.Tracer = simTracer{}

type simCallKey struct{}

func (simTracer) Begin(ctx context.Context, step lock.Step) (context.Context, func(error)) {
	if c, ok := ctx.Value(simCallKey{}).(*simCall); ok {
		c.begin(step)
	}
	return ctx, func(error) {}
}
