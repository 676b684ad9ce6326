package lock

import (
	"io"
	"testing"
	"time"
)

// A connection's deadline may have passed because this process did not run, and the
// answer be there.
func TestAConnectionIsLookedAtOnceMoreAfterItsDeadline(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	s := newServer(t, func(command []string, out io.Writer) {
		switch command[0] {
		case "HELLO":
			_, _ = io.WriteString(out, "*2\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n")
		case "HGET":
			_, _ = io.WriteString(out, "$5\r\nnonce\r\n")
		default:
			asked <- struct{}{}
			<-answer
			_, _ = io.WriteString(out, "*1\r\n:1\r\n")
		}
	})
	m := against(t, s)
	n := m.l.nodes[0]
	for range 20 { // the extra time may be over on a busy machine
		o, sink := m.on("r", opAcquire, newID()), make(replies, 1)
		o.sink, o.expires, o.ttl = sink, time.Now().Add(time.Minute), 60_000
		n.submit(o)
		<-asked
		n.mu.Lock()
		n.sentAt = n.sentAt.Add(-2 * n.stall)
		_ = n.link.conn.SetReadDeadline(time.Now())
		n.mu.Unlock()
		answer <- struct{}{}
		if r := <-sink; r.err == nil && r.n == 1 {
			return
		}
	}
	t.Error("no answer that came after the deadline was read")
}
