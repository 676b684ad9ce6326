package lock

import (
	"context"
	"io"
	"testing"
	"time"
)

// A connection's deadline may pass because this process did not run, although the answer has arrived.
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

// If a node refuses the login, or sends an answer without a request, every call returns an error. Inspect used to
// panic.
func TestANodeThatRefusesIsAnErrorOfEveryCall(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{
		"-DENIED no\r\n", "-NOAUTH no\r\n", "-WRONGPASS no\r\n", "-NOPERM no\r\n", "-WRONGTYPE no\r\n", "-ERR max number of clients reached\r\n",
		"-\r\n", "+OK\r\n", ":1\r\n", "$-1\r\n", "*0\r\n", "*-1\r\n",
	} {
		t.Run(answer, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, func(_ []string, out io.Writer) { _, _ = io.WriteString(out, answer) })
			l, err := New(Config{Nodes: []Node{{Addr: s.addr, Password: "secret"}}, NodeTimeout: 20 * time.Millisecond, Epochs: noEpochs{}})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			name := l.nodes[0].name
			for call, do := range map[string]func() error{
				"init":     func() error { return l.Init(ctx) },
				"ping":     func() error { return l.Ping(ctx) },
				"readmit":  func() error { return l.Admit(ctx, name) },
				"acquire":  func() error { _, err := l.Acquire(ctx, "r"); return err },
				"try":      func() error { _, err := l.TryAcquire(ctx, "r"); return err },
				"inspect":  func() error { _, err := l.Inspect(ctx, "r"); return err },
				"leaks":    func() error { _, err := l.Leaks(ctx); return err },
				"sweep":    func() error { _, err := l.Sweep(ctx); return err },
				"overrule": func() error { _, err := l.ForceRelease(ctx, "r"); return err },
			} {
				if do() == nil {
					t.Errorf("%s: no error", call)
				}
			}
		})
	}
}

type noEpochs struct{}

func (noEpochs) RaiseEpoch(context.Context, int64) (int64, error) { return 1, nil }
