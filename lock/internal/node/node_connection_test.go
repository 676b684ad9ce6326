package node_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// A connection's deadline may pass because this process did not run, although the answer has arrived: it is read for a
// moment more.
func TestAConnectionIsLookedAtOnceMoreAfterItsDeadline(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		after time.Duration // an op is sent, its answer is there
		read  bool
	}{
		"an answer in time":        {node.StallTimeout - time.Millisecond, true},
		"an answer a moment later": {node.StallTimeout + node.ExtraTime - time.Millisecond, true},
		"an answer after that":     {node.StallTimeout + node.ExtraTime + time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m, nodes := inBubble(t, 3)
				a := node.NewID()
				m.one(m.on("r", node.OpAcquire, a)) // connects
				connections := nodes[0].Connections()
				for range 2 { // each answer has its own moment
					synctest.Wait()
					nodes[0].Replies.Close()
					o, sink := m.on("r", node.OpAcquire, a), make(replies, 1)
					o.Sink, o.Expires, o.TTL = sink, time.Now().Add(time.Minute), 60_000
					m.nodes[0].Submit(o)
					time.Sleep(c.after)
					nodes[0].Replies.Open()
					if r := <-sink; (r.Err == nil) != c.read || !c.read && !errors.Is(r.Err, lock.ErrNodeTimeout) {
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
				l := (&impostor{answer: func(_ []string, out io.Writer) { _, _ = io.WriteString(out, answer) }}).locker(t)
				const name = "impostor"
				for call, do := range map[string]func(ctx context.Context) error{
					"init":     func(ctx context.Context) error { return admin.Of(l).Init(ctx) },
					"ping":     func(ctx context.Context) error { _, err := l.Ready(ctx); return err },
					"readmit":  func(ctx context.Context) error { return admin.Of(l).Admit(ctx, name) },
					"acquire":  func(ctx context.Context) error { _, err := l.Acquire(ctx, "r"); return err },
					"try":      func(ctx context.Context) error { _, err := l.TryAcquire(ctx, "r"); return err },
					"inspect":  func(ctx context.Context) error { _, err := leasing.One(l.Inspect(ctx, "r")); return err },
					"leaks":    func(ctx context.Context) error { _, err := admin.Of(l).Leaks(ctx); return err },
					"sweep":    func(ctx context.Context) error { _, err := admin.Of(l).Sweep(ctx); return err },
					"overrule": func(ctx context.Context) error { _, err := admin.Of(l).ForceRelease(ctx, "r"); return err },
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
