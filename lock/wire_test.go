package lock

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

// impostor is a node in a bubble whose answers the test chooses.
type impostor struct {
	answer   func(command []string, out io.Writer)
	accepted atomic.Int64 // connections
}

// newImpostor answers HELLO and the query of the incarnation as a node would. Each call of a script gets the next of
// the answers, and the last one repeatedly.
func newImpostor(answers ...string) *impostor {
	var mu sync.Mutex
	next := func() string {
		mu.Lock()
		defer mu.Unlock()
		if len(answers) > 1 {
			defer func() { answers = answers[1:] }()
		}
		return answers[0]
	}
	return &impostor{answer: greeting(func(out io.Writer) { _, _ = io.WriteString(out, next()) })}
}

// greeting answers HELLO and the query of the incarnation as a node would, and everything else as the test says.
func greeting(answer func(out io.Writer)) func(command []string, out io.Writer) {
	return func(command []string, out io.Writer) {
		switch command[0] {
		case "HELLO":
			_, _ = io.WriteString(out, "*4\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n")
		case "HMGET":
			_, _ = io.WriteString(out, "*2\r\n$5\r\nnonce\r\n$-1\r\n")
		default:
			answer(out)
		}
	}
}

// dial is a Node's Dialer. The connection ends when the client closes it.
func (s *impostor) dial(context.Context, string, string) (net.Conn, error) {
	s.accepted.Add(1)
	client, server := net.Pipe()
	commands := make(chan []string, 1000) // so that the client's writes do not wait for its reads
	go func() {
		defer close(commands)
		for in := bufio.NewReader(server); ; {
			command, err := readCommand(in)
			if err != nil {
				return
			}
			commands <- command
		}
	}()
	go func() {
		defer server.Close()
		for command := range commands {
			switch command[0] {
			case "SCRIPT": // each connection sends this first: see leaveTrace
				_, _ = io.WriteString(server, "$3\r\nsum\r\n")
			case "INFO": // and this: see account
				_, _ = io.WriteString(server, "$0\r\n\r\n")
			default:
				s.answer(command, server)
			}
		}
	}()
	return client, nil
}

func readCommand(in *bufio.Reader) ([]string, error) {
	number := func() (int, error) {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number()
	if err != nil {
		return nil, err
	}
	command := make([]string, n)
	for i := range command {
		size, err := number()
		if err != nil {
			return nil, err
		}
		text := make([]byte, size+2)
		if _, err := io.ReadFull(in, text); err != nil {
			return nil, err
		}
		command[i] = string(text[:size])
	}
	return command, nil
}

// against is a Locker with one impostor.
func against(t *testing.T, s *impostor) *messages {
	t.Helper()
	l, err := New(Config{Nodes: []Node{{Addr: "impostor", Password: "open sesame", Dialer: s.dial}}, Epochs: noEpochs{}, unwatched: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return &messages{t, l}
}

// one sends an op and waits for its reply.
func (m *messages) one(o *op) reply {
	m.t.Helper()
	return m.run(0, o)[0]
}

// connections fails unless an impostor has been connected to so many times.
func (s *impostor) connections(t *testing.T, want int64) {
	t.Helper()
	if got := s.accepted.Load(); got != want {
		t.Errorf("%d connections; want %d", got, want)
	}
}

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
				first := m.one(m.on("r", opAcquire, newID()))
				if !strings.HasSuffix(name, "too many") && (first.err == nil || !first.sent) {
					t.Errorf("the reply was taken as %+v", first)
				}
				synctest.Wait() // a surplus is noticed after the answer was delivered
				if second := m.one(m.on("r", opRelease, newID())); second.err != nil || second.n != 1 {
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
		if r := m.one(m.on("r", opRelease, newID())); r.err == nil || !r.sent {
			t.Errorf("got %+v", r)
		}
		s.connections(t, 2)
		for later := range int64(3) { // the node is owed the release
			time.Sleep(resendEvery - time.Nanosecond)
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
					sink, o := make(replies, 2), m.on("r", opAcquire, newID())
					o.sink, o.expires, o.ttl = sink, time.Now().Add(time.Minute), 60_000
					m.l.nodes[0].submit(o)
					return sink
				}
				first := submit()
				<-asked
				var second replies
				if queued {
					second = submit()
				}
				close(gate)
				if r := <-first; r.n != 7 {
					t.Errorf("the first got %+v", r)
				}
				if !queued {
					synctest.Wait()
					second = submit()
				}
				if r := <-second; r.n != 9 {
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
		if r := m.one(m.on("r", opAcquire, newID())); r.err == nil || !r.sent {
			t.Errorf("got %+v", r)
		}
		if r := m.one(m.on("r", opRelease, newID())); r.err != nil || r.n != 1 {
			t.Errorf("got %+v", r)
		}
		s.connections(t, 1)
	})
}

func TestReplyComesInPieces(t *testing.T) {
	t.Parallel()
	const text = "*4\r\n:0\r\n:1500\r\n:9007199254740991\r\n$4\r\nname\r\n-ERR x\r\n*2\r\n$-1\r\n:-2\r\n"
	k := &link{in: bufio.NewReaderSize(iotest.OneByteReader(strings.NewReader(text)), 16<<10)}
	for i, want := range [][]value{{{n: 0}, {n: 1500}, {n: 1<<53 - 1}, {text: "name"}}, nil, {{}, {n: -2}}} {
		vals, err := k.reply()
		plain := slices.Clone(vals)
		for i := range plain {
			plain[i] = value{n: plain[i].n, text: plain[i].text}
		}
		var fromServer replyError
		if want == nil && !errors.As(err, &fromServer) || want != nil && (err != nil || !slices.Equal(plain, want)) {
			t.Errorf("reply %d: %v, %v", i, vals, err)
		}
	}
}

func FuzzReply(f *testing.F) {
	for _, seed := range []string{
		"*1\r\n:1\r\n", "*4\r\n:0\r\n:-1\r\n:5\r\n$3\r\nabc\r\n", "-ERR no\r\n", "*-1\r\n", "$-1\r\n", "*2\r\n*1\r\n:1\r\n:2\r\n", "+OK\r\n", "*1\r\n$65537\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		k := &link{in: bufio.NewReaderSize(bytes.NewReader(text), 64)}
		for {
			vals, err := k.reply()
			var fromServer replyError
			if err != nil && !errors.As(err, &fromServer) {
				return
			}
			if len(vals) > len(text) {
				t.Fatalf("%d values of %d bytes", len(vals), len(text))
			}
			_, _ = parseReply(vals, err), parseBatch(nil, 2, vals, err)
		}
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
		o := m.on("r", opAcquire, newID())
		o.sink, o.expires = sink, time.Now().Add(-time.Nanosecond)
		m.l.nodes[0].submit(o)
		<-asked
		closed := make(chan error, 1)
		go func() { closed <- m.l.Close() }()
		synctest.Wait() // the node knows that it is being closed
		begun := time.Now()
		close(greet)
		if err := <-closed; err != nil || time.Since(begun) != 0 {
			t.Errorf("closed after %v: %v", time.Since(begun), err)
		}
		if r := <-sink; r.err == nil {
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
				m := against(t, &impostor{answer: func(command []string, out io.Writer) {
					if command[0] == "HELLO" {
						_, _ = fmt.Fprintf(out, "*4\r\n$6\r\nserver\r\n+%s\r\n$7\r\nversion\r\n+%s\r\n", name, version)
						return
					}
					other(command, out)
				}})
				atOnce(t, func() {
					_, err := m.l.Acquire(t.Context(), "r")
					if errors.Is(err, ErrOldRedis) != refused || refused && !strings.Contains(err.Error(), version) || !refused && err != nil {
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
				m := against(t, &impostor{answer: func(_ []string, out io.Writer) { _, _ = fmt.Fprintf(out, "-%s\r\n", said) }})
				atOnce(t, func() {
					acquire := m.l.TryAcquire
					if old {
						acquire = m.l.Acquire
					}
					if _, err := acquire(t.Context(), "r"); err == nil || errors.Is(err, ErrOldRedis) != old || strings.Contains(err.Error(), "sesame") {
						t.Errorf("%v", err)
					}
				})
			})
		})
	}
}
