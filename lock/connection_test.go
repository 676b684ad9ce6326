package lock

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
)

// A connection's deadline may pass because this process did not run, although the answer has arrived: it is read for a
// moment more.
func TestAConnectionIsLookedAtOnceMoreAfterItsDeadline(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		after time.Duration // an op is sent, its answer is there
		read  bool
	}{
		"an answer in time":        {stallTimeout - time.Millisecond, true},
		"an answer a moment later": {stallTimeout + extraTime - time.Millisecond, true},
		"an answer after that":     {stallTimeout + extraTime + time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m, nodes := inBubble(t, 3)
				a := newID()
				m.one(m.on("r", opAcquire, a)) // connects
				connections := nodes[0].Connections()
				for range 2 { // each answer has its own moment
					synctest.Wait()
					nodes[0].Replies.Close()
					o, sink := m.on("r", opAcquire, a), make(replies, 1)
					o.sink, o.expires, o.ttl = sink, time.Now().Add(time.Minute), 60_000
					m.l.nodes[0].submit(o)
					time.Sleep(c.after)
					nodes[0].Replies.Open()
					if r := <-sink; (r.err == nil) != c.read || !c.read && !errors.Is(r.err, ErrNodeTimeout) {
						t.Errorf("%+v", r)
					}
				}
				if ended := nodes[0].Connections() > connections; ended == c.read {
					t.Errorf("the connection has ended: %t", ended)
				}
			})
		})
	}
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
			synctest.Test(t, func(t *testing.T) {
				l := against(t, &impostor{answer: func(_ []string, out io.Writer) { _, _ = io.WriteString(out, answer) }}).l
				name := l.nodes[0].name
				for call, do := range map[string]func(ctx context.Context) error{
					"init":     func(ctx context.Context) error { return l.Init(ctx) },
					"ping":     func(ctx context.Context) error { _, err := l.Ready(ctx); return err },
					"readmit":  func(ctx context.Context) error { return l.Admit(ctx, name) },
					"acquire":  func(ctx context.Context) error { _, err := l.Acquire(ctx, "r"); return err },
					"try":      func(ctx context.Context) error { _, err := l.TryAcquire(ctx, "r"); return err },
					"inspect":  func(ctx context.Context) error { _, err := leasing.One(l.Inspect(ctx, "r")); return err },
					"leaks":    func(ctx context.Context) error { _, err := l.Leaks(ctx); return err },
					"sweep":    func(ctx context.Context) error { _, err := l.Sweep(ctx); return err },
					"overrule": func(ctx context.Context) error { _, err := l.ForceRelease(ctx, "r"); return err },
				} {
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
					if err := do(ctx); err == nil || ctx.Err() != nil && call != "acquire" { // which waits for the node
						t.Errorf("%s: %v", call, err)
					}
					cancel()
				}
			})
		})
	}
}

type noEpochs struct{}

func (noEpochs) RaiseEpoch(context.Context, int64) (int64, error) { return 1, nil }
