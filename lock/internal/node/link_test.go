package node_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// An answer that is not valid ends the connection, because the following ones may belong to any call. The lock may
// have been granted.
func TestAMalformedReplyEndsTheConnection(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"no type":                 "?1\r\n",
		"no carriage return":      ":1\n",
		"no digits":               ":\r\n",
		"letters":                 ":12a\r\n",
		"more digits than 2^53":   ":1234567890123456789\r\n",
		"a number too many":       "*1\r\n:7\r\n:7\r\n",
		"an array too many":       "*1\r\n:7\r\n*1\r\n:7\r\n",
		"a text that is too long": "*1\r\n$99999999\r\n",
		"a text without its end":  "*4\r\n:0\r\n:5\r\n:9\r\n$1\r\nabc\r\n",
		"an error in the array":   "*2\r\n-ERR inside\r\n:7\r\n",
		"endless nesting":         "*1\r\n*99999999\r\n:1\r\n",
		"a line without an end":   ":" + strings.Repeat("1", 20<<10),
		"a number in words":       "*1\r\n$1\r\n7\r\n",
		"a word":                  "+QUEUED\r\n",
		"nothing":                 "*0\r\n",
		"no array":                "*-1\r\n",
		"an array of nothing":     "*1\r\n$-1\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newImpostor(answer, "*1\r\n:1\r\n")
				m := against(t, s)
				first := m.one(m.on("r", node.OpAcquire, node.NewID()))
				if !strings.HasSuffix(name, "too many") && (first.Err == nil || !first.Sent) {
					t.Errorf("the reply was taken as %+v", first)
				}
				synctest.Wait() // a surplus is noticed after the answer was delivered
				if second := m.one(m.on("r", node.OpRelease, node.NewID())); second.Err != nil || second.N != 1 {
					t.Errorf("the next call got %+v", second)
				}
				s.connections(t, 2)
			})
		})
	}
}

// Without a limit, repeating the release would keep both sides busy until its lock is gone.
func TestAReleaseUnderWhichEveryConnectionEndsIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newImpostor("?\r\n")
		m := against(t, s)
		if r := m.one(m.on("r", node.OpRelease, node.NewID())); r.Err == nil || !r.Sent {
			t.Errorf("got %+v", r)
		}
		s.connections(t, 2)
		for later := range int64(3) { // the node is owed the release
			time.Sleep(node.ResendEvery - time.Nanosecond)
			s.connections(t, 2+later)
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			s.connections(t, 3+later)
		}
	})
}

// An answer without a request is dropped: the ops of the previous batch have had their answers, and may be reused. Nor is
// it the answer to what was queued behind them.
func TestAnUnaskedReplyIsGivenToNobody(t *testing.T) {
	t.Parallel()
	for name, queued := range map[string]bool{"while nothing is queued": false, "while another op is queued": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				asked, gate := make(chan struct{}, 2), make(chan struct{})
				answers := []string{"*1\r\n:7\r\n*1\r\n:8\r\n", "*1\r\n:9\r\n"}
				m := against(t, &impostor{answer: greeting(func(out io.Writer) {
					answer := answers[0]
					answers = answers[1:]
					asked <- struct{}{}
					<-gate
					_, _ = io.WriteString(out, answer)
				})})
				submit := func() replies {
					sink, o := make(replies, 2), m.on("r", node.OpAcquire, node.NewID())
					o.Sink, o.Expires, o.TTL = sink, time.Now().Add(time.Minute), 60_000
					m.nodes[0].Submit(o)
					return sink
				}
				first := submit()
				<-asked
				var second replies
				if queued {
					second = submit()
				}
				close(gate)
				if r := <-first; r.N != 7 {
					t.Errorf("the first got %+v", r)
				}
				if !queued {
					synctest.Wait()
					second = submit()
				}
				if r := <-second; r.N != 9 {
					t.Errorf("the second got %+v", r)
				}
				if len(first)+len(second) > 0 {
					t.Error("a second reply to one op")
				}
			})
		})
	}
}

// Errors of the server are answers: the connection stays.
func TestAnErrorOfTheServerLeavesTheConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newImpostor("-BUSY a script runs\r\n", "*1\r\n:1\r\n")
		m := against(t, s)
		if r := m.one(m.on("r", node.OpAcquire, node.NewID())); r.Err == nil || !r.Sent {
			t.Errorf("got %+v", r)
		}
		if r := m.one(m.on("r", node.OpRelease, node.NewID())); r.Err != nil || r.N != 1 {
			t.Errorf("got %+v", r)
		}
		s.connections(t, 1)
	})
}

// Closing during a connection attempt, whose calls have expired when it succeeds, must not wait for a node without
// any requests.
func TestCloseEndsWhileANodeIsSlowToGreet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked, greet := make(chan struct{}), make(chan struct{})
		known := greeting(func(io.Writer) { t.Error("an expired call was sent") })
		s := &impostor{answer: func(command []string, out io.Writer) {
			if command[0] == "HELLO" {
				close(asked)
				<-greet
			}
			known(command, out)
		}}
		m := against(t, s)
		sink := make(replies, 1)
		o := m.on("r", node.OpAcquire, node.NewID())
		o.Sink, o.Expires = sink, time.Now().Add(-time.Nanosecond)
		m.nodes[0].Submit(o)
		<-asked
		closed := make(chan error, 1)
		go func() { closed <- m.close() }()
		synctest.Wait() // the node knows that it is being closed
		begun := time.Now()
		close(greet)
		if err := <-closed; err != nil || time.Since(begun) != 0 {
			t.Errorf("closed after %v: %v", time.Since(begun), err)
		}
		if r := <-sink; r.Err == nil {
			t.Errorf("an expired call got %+v", r)
		}
	})
}

// atOnce fails if a call waited.
func atOnce(t *testing.T, f func()) {
	t.Helper()
	begun := time.Now()
	if f(); time.Since(begun) != 0 {
		t.Errorf("it waited for %v", time.Since(begun))
	}
}

func TestARedisBeforeVersion7IsRefusedByName(t *testing.T) {
	t.Parallel()
	for said, refused := range map[string]bool{"redis 6.2.14": true, "redis 7.0.15": false, "redis 8.0.1": false, "valkey 6.9": false} {
		t.Run(said, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				name, version, _ := strings.Cut(said, " ")
				other := greeting(func(out io.Writer) { _, _ = io.WriteString(out, "*1\r\n:1\r\n") })
				l := (&impostor{answer: func(command []string, out io.Writer) {
					if command[0] == "HELLO" {
						_, _ = fmt.Fprintf(out, "*4\r\n$6\r\nserver\r\n+%s\r\n$7\r\nversion\r\n+%s\r\n", name, version)
						return
					}
					other(command, out)
				}}).locker(t)
				atOnce(t, func() {
					_, err := l.Acquire(t.Context(), "r")
					if errors.Is(err, lock.ErrOldRedis) != refused || refused && !strings.Contains(err.Error(), version) || !refused && err != nil {
						t.Errorf("%v", err)
					}
				})
			})
		})
	}
}

// Redis quotes the arguments of a command that it does not know, and HELLO has the password.
func TestARedisWithoutHelloIsRefusedWithoutThePassword(t *testing.T) {
	t.Parallel()
	for said, old := range map[string]bool{
		"ERR unknown command `HELLO`, with args beginning with: `2`, `AUTH`, `default`, `open sesame`, ": true,
		"ERR unknown subcommand, with args beginning with: `2`, `AUTH`, `default`, `open sesame`, ":      false,
		"ERR Syntax error in HELLO option 'open sesame'":                                                 false,
	} {
		t.Run(said, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := (&impostor{answer: func(_ []string, out io.Writer) { _, _ = fmt.Fprintf(out, "-%s\r\n", said) }}).locker(t)
				atOnce(t, func() {
					acquire := l.TryAcquire
					if old {
						acquire = l.Acquire
					}
					if _, err := acquire(t.Context(), "r"); err == nil || errors.Is(err, lock.ErrOldRedis) != old || strings.Contains(err.Error(), "sesame") {
						t.Errorf("%v", err)
					}
				})
			})
		})
	}
}
