package lock

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"
)

// impostor is a node whose answers the test chooses.
type impostor struct {
	addr     string
	accepted chan struct{} // one for each connection
}

// newImpostor answers HELLO and the query of the incarnation as a node would. Each call of a script gets the next of
// the answers, and the last one repeatedly.
func newImpostor(t *testing.T, answers ...string) *impostor {
	t.Helper()
	var mu sync.Mutex
	next := func() string {
		mu.Lock()
		defer mu.Unlock()
		if len(answers) > 1 {
			defer func() { answers = answers[1:] }()
		}
		return answers[0]
	}
	return newServer(t, func(command []string, out io.Writer) {
		switch command[0] {
		case "HELLO":
			_, _ = io.WriteString(out, "*4\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n")
		case "HGET":
			_, _ = io.WriteString(out, "$5\r\nnonce\r\n")
		default:
			_, _ = io.WriteString(out, next())
		}
	})
}

func newServer(t *testing.T, answer func(command []string, out io.Writer)) *impostor {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &impostor{addr: listener.Addr().String(), accepted: make(chan struct{}, 1000)}
	var mu sync.Mutex
	var open []net.Conn
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.accepted <- struct{}{}
			mu.Lock()
			open = append(open, conn)
			mu.Unlock()
			conns.Go(func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for {
					command, err := readCommand(in)
					if err != nil {
						return
					}
					if command[0] == "SCRIPT" { // each connection sends this first: see leaveTrace
						_, _ = io.WriteString(conn, "$3\r\nsum\r\n")
						continue
					}
					if command[0] == "INFO" { // and this: see refuseEvicting
						_, _ = io.WriteString(conn, "$0\r\n\r\n")
						continue
					}
					answer(command, conn)
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		for _, conn := range open {
			_ = conn.Close()
		}
		mu.Unlock()
		conns.Wait()
	})
	return s
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
	l, err := New(Config{Nodes: []Node{{Addr: s.addr}}, NodeTimeout: Patient})
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
			s := newImpostor(t, answer, "*1\r\n:1\r\n")
			m := against(t, s)
			m.t = t
			first := m.one(m.on("r", opAcquire, newID()))
			tooMany := strings.HasSuffix(name, "too many")
			if !tooMany && (first.err == nil || !first.sent) {
				t.Errorf("the reply was taken as %+v", first)
			}
			<-s.accepted
			second := m.one(m.on("r", opRelease, newID()))
			if tooMany && second.err != nil {
				second = m.one(m.on("r", opRelease, newID())) // the call that got the surplus answer fails
			}
			if second.err != nil || second.n != 1 {
				t.Errorf("the next call got %+v", second)
			}
			select {
			case <-s.accepted:
			default:
				t.Error("the next call used the same connection")
			}
		})
	}
}

// Without a limit, repeating the release would keep both sides busy until its lock is gone.
func TestAReleaseUnderWhichEveryConnectionEndsIsGivenUp(t *testing.T) {
	t.Parallel()
	s := newImpostor(t, "?\r\n")
	m := against(t, s)
	if r := m.one(m.on("r", opRelease, newID())); r.err == nil || !r.sent {
		t.Errorf("got %+v", r)
	}
	if n := len(s.accepted); n < 2 || n > 3 { // the third comes a second later
		t.Errorf("%d connections for it; want the second try's", n)
	}
	<-s.accepted
	<-s.accepted
	select {
	case <-s.accepted: // the node is owed the release
	case <-time.After(10 * resendEvery):
		t.Error("not tried again")
	}
}

// An answer without a request is dropped: the ops of the previous batch have had their answers, and may be reused.
func TestAnUnaskedReplyIsGivenToNobody(t *testing.T) {
	t.Parallel()
	s := newImpostor(t, "*1\r\n:7\r\n*1\r\n:8\r\n", "*1\r\n:9\r\n")
	m := against(t, s)
	sink := make(replies, 4)
	o := m.on("r", opAcquire, newID())
	o.sink, o.expires = sink, time.Now().Add(time.Minute)
	m.l.nodes[0].submit(o)
	if r := <-sink; r.n != 7 {
		t.Fatalf("got %+v", r)
	}
	<-s.accepted
	next := m.one(m.on("r", opAcquire, newID()))
	for next.err != nil {
		next = m.one(m.on("r", opAcquire, newID()))
	}
	if next.n != 9 {
		t.Errorf("the next call got %+v", next)
	}
	select {
	case r := <-sink:
		t.Errorf("a second reply to one op: %+v", r)
	default:
	}
}

// Errors of the server are answers: the connection stays.
func TestAnErrorOfTheServerLeavesTheConnection(t *testing.T) {
	t.Parallel()
	s := newImpostor(t, "-BUSY a script runs\r\n", "*1\r\n:1\r\n")
	m := against(t, s)
	if r := m.one(m.on("r", opAcquire, newID())); r.err == nil || !r.sent {
		t.Errorf("got %+v", r)
	}
	if r := m.one(m.on("r", opRelease, newID())); r.err != nil || r.n != 1 {
		t.Errorf("got %+v", r)
	}
	if n := len(s.accepted); n != 1 {
		t.Errorf("%d connections", n)
	}
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
	asked, answer := make(chan struct{}, 10), make(chan struct{})
	s := newServer(t, func(command []string, out io.Writer) {
		if command[0] == "HELLO" {
			asked <- struct{}{}
			<-answer
			_, _ = io.WriteString(out, "*2\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n")
			return
		}
		_, _ = io.WriteString(out, "$5\r\nnonce\r\n")
	})
	m := against(t, s)
	sink := make(replies, 1)
	o := m.on("r", opAcquire, newID())
	o.sink, o.expires = sink, time.Now()
	m.l.nodes[0].submit(o)
	<-asked
	closed := make(chan error)
	go func() { closed <- m.l.Close() }()
	for { // until the node knows that it is being closed
		m.l.nodes[0].mu.Lock()
		known := m.l.nodes[0].closed
		m.l.nodes[0].mu.Unlock()
		if known {
			break
		}
		runtime.Gosched()
	}
	close(answer)
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Close hangs")
	}
	if r := <-sink; r.err == nil {
		t.Errorf("an expired call got %+v", r)
	}
}

func TestARedisBeforeVersion7IsRefusedByName(t *testing.T) {
	t.Parallel()
	for said, refused := range map[string]bool{"redis 6.2.14": true, "redis 7.0.15": false, "redis 8.0.1": false, "valkey 6.9": false} {
		t.Run(said, func(t *testing.T) {
			t.Parallel()
			name, version, _ := strings.Cut(said, " ")
			s := newServer(t, func(command []string, out io.Writer) {
				switch command[0] {
				case "HELLO":
					_, _ = io.WriteString(out, fmt.Sprintf("*4\r\n$6\r\nserver\r\n+%s\r\n$7\r\nversion\r\n+%s\r\n", name, version))
				case "HGET":
					_, _ = io.WriteString(out, "$5\r\nnonce\r\n")
				default:
					_, _ = io.WriteString(out, "*1\r\n:1\r\n")
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := against(t, s).l.Acquire(ctx, "r")
			if errors.Is(err, ErrOldRedis) != refused || ctx.Err() != nil || refused && !strings.Contains(err.Error(), version) {
				t.Errorf("%v", err)
			}
		})
	}
}

// Redis quotes the arguments of a command that it does not know, and HELLO has the password.
func TestARedisWithoutHelloIsRefusedWithoutThePassword(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(command []string, out io.Writer) {
		_, _ = fmt.Fprintf(out, "-ERR unknown command `%s`, with args beginning with: `%s`, \r\n", command[0], strings.Join(command[1:], "`, `"))
	})
	l, err := New(Config{Nodes: []Node{{Addr: s.addr, Password: "open sesame"}}, NodeTimeout: Patient})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err = l.Acquire(ctx, "r"); !errors.Is(err, ErrOldRedis) || strings.Contains(err.Error(), "sesame") || ctx.Err() != nil {
		t.Errorf("%v", err)
	}
}
