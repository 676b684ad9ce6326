package pgwire

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/gateway/activity"
)

// scripted is a connection whose reads a function answers.
type scripted struct {
	net.Conn
	read func([]byte) (int, error)
}

func (c *scripted) Read(b []byte) (int, error) { return c.read(b) }

func aRelay(t *testing.T, client, upstream net.Conn) *relay {
	t.Helper()
	srv, err := New(Config{Addr: "127.0.0.1:1", Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	p, _ := srv.limits.take(client)
	return newHandler(&srv.services, client, p).relayTo(&backend{conn: upstream, upstreams: &srv.upstreams}, PolicyOpen)
}

// anOpenRelay is one whose session has been opened.
func anOpenRelay(t *testing.T, client, upstream net.Conn) *relay {
	t.Helper()
	r := aRelay(t, client, upstream)
	r.session.upstream, r.session.phase = r.upstream, open
	r.session.endLogin()
	return r
}

func TestClientsDirectionOutlivesTheDeadlineOfALoginThatSucceeded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		reads := 0
		r := anOpenRelay(t, &scripted{Conn: near, read: func(b []byte) (int, error) {
			switch reads++; reads {
			case 1:
				return 0, os.ErrDeadlineExceeded // the deadline passes just when the session opens
			case 2:
				return copy(b, "Q\x00\x00\x00\x05\x00"), nil
			}
			return 0, io.EOF
		}}, far)
		passed := make(chan string, 1)
		go func() {
			b, _ := io.ReadAll(near)
			passed <- string(b)
		}()
		r.clientToServer()
		_ = far.Close()
		if got := <-passed; got != "Q\x00\x00\x00\x05\x00" {
			t.Errorf("passed on %q", got)
		}
	})
}

func TestDeadlineThatRunsOutBeforeTheSessionOpensEndsIt(t *testing.T) {
	t.Parallel()
	near, far := net.Pipe()
	defer func() { _, _ = near.Close(), far.Close() }()
	r := aRelay(t, &scripted{Conn: near, read: func([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }}, far)
	if r.session.logIn(r.upstream) != nil {
		t.Fatal("the session may not log in")
	}
	r.clientToServer()
	if r.opens() {
		t.Error("a session opened whose client is not read any more")
	}
}

// slow is a connection that calls a function before it writes.
type slow struct {
	net.Conn
	first func()
}

func (c *slow) Write(b []byte) (int, error) {
	c.first()
	return c.Conn.Write(b)
}

func TestASessionThatIsCutBetweenAReadAndItsWriteIsTold(t *testing.T) {
	t.Parallel()
	client, there := net.Pipe()
	upstream, server := net.Pipe()
	defer func() { _, _ = client.Close(), server.Close() }()
	go func() { _, _ = io.Copy(io.Discard, server) }()
	var r *relay
	r = aRelay(t, &slow{Conn: there, first: func() { r.session.cut(&fatalError{code: "ZF001", message: "stale"}) }}, upstream)
	if r.session.logIn(r.upstream) != nil || !r.opens() {
		t.Fatal("the session may not log in")
	}
	got := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(client)
		got <- string(b)
	}()
	ready := "Z\x00\x00\x00\x05I"
	var stream serverStream
	_ = r.shutDown(&stream, r.pump(newSource(upstream), []byte(ready), &stream))
	_ = there.Close()
	if text, found := strings.CutPrefix(<-got, ready); !found || !strings.Contains(text, "FATAL") || !strings.Contains(text, "ZF001") {
		t.Errorf("the client got %q; want the answer, and then why its session ends", text)
	}
}

// The end of a session whose client has disconnected counts as no refusal.
func TestASessionThatIsOverAnywayIsNotToldAsRefused(t *testing.T) {
	t.Parallel()
	for left, want := range map[bool]int{false: 1, true: 0} {
		client, there := net.Pipe()
		upstream, server := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, server) }()
		go func() { _, _ = io.Copy(io.Discard, client) }()
		r := aRelay(t, there, upstream)
		events := 0
		r.events.report = func(activity.Event) { events++ }
		if r.session.logIn(r.upstream) != nil || !r.opens() {
			t.Fatal("the session may not log in")
		}
		r.session.left = left
		r.session.cut(&fatalError{code: "ZF001", message: "stale"})
		_ = r.shutDown(&serverStream{}, errEnded)
		if events != want {
			t.Errorf("taken leave %v: %d events, want %d", left, events, want)
		}
		_, _ = client.Close(), server.Close()
	}
}

func TestPanicOfOneDirectionEndsBoth(t *testing.T) {
	t.Parallel()
	client, _ := net.Pipe()
	upstream, server := net.Pipe() // sends nothing
	defer func() { _ = server.Close() }()
	r := aRelay(t, &scripted{Conn: client, read: func([]byte) (int, error) { panic("of the test") }}, upstream)
	if r.session.logIn(r.upstream) != nil {
		t.Fatal("the session may not log in")
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.carry()
	}()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the other direction goes on")
	}
}

// answering is a client that answers its first message before the write that brought it returns.
type answering struct {
	scripted
	wrote func()
}

func (c *answering) Write(b []byte) (int, error) {
	c.wrote()
	return len(b), nil
}

// A client may send CopyDone before the goroutine that passed on CopyInResponse continues. The late count must not keep
// the session busy forever.
func TestAClientMayAnswerBeforeTheWriteThatItAnswersIsOver(t *testing.T) {
	t.Parallel()
	const sync, copyIn, copyDone, ready = "S\x00\x00\x00\x04", "G\x00\x00\x00\x07\x00\x00\x00", "c\x00\x00\x00\x04", "Z\x00\x00\x00\x05I"
	upstream, server := net.Pipe()
	says, heard := make(chan string, 2), make(chan struct{})
	client := &answering{scripted{read: func(b []byte) (int, error) {
		if m, more := <-says; more {
			return copy(b, m), nil
		}
		return 0, io.EOF
	}}, func() {}}
	r := anOpenRelay(t, client, upstream)
	client.wrote = func() {
		client.wrote = func() {}
		says <- copyDone + sync
		<-heard
	}
	go func() {
		b := make([]byte, 100)
		_, _ = io.ReadFull(server, b[:len(sync)])
		_, _ = io.WriteString(server, copyIn)
		_, _ = io.ReadFull(server, b[:len(copyDone+sync)])
		close(heard)
		_, _ = io.WriteString(server, ready)
		_ = server.Close()
	}()
	says <- sync
	go r.clientToServer()
	defer close(says)
	if err := r.pump(newSource(upstream), nil, new(serverStream)); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	if s := r.session; !s.idle || s.quiet != 'I' {
		t.Errorf("%d answers are awaited behind the last one", s.pending)
	}
}

// slowReturn is a connection whose first write returns only on demand.
type slowReturn struct {
	net.Conn
	may   chan struct{}
	later atomic.Bool
}

func (c *slowReturn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if !c.later.Swap(true) {
		<-c.may
	}
	return n, err
}

// PostgreSQL may answer before the write of the question returns. A session that is ended then still sends Terminate.
func TestPostgreSQLMayAnswerBeforeTheWriteThatAsksIsOver(t *testing.T) {
	t.Parallel()
	const query, ready, terminate = "Q\x00\x00\x00\x05\x00", "Z\x00\x00\x00\x05I", "X\x00\x00\x00\x04"
	near, server := net.Pipe()
	upstream := &slowReturn{Conn: near, may: make(chan struct{})}
	says := make(chan string, 1)
	quiet, _ := net.Pipe()
	client := &answering{scripted{Conn: quiet, read: func(b []byte) (int, error) {
		if m, more := <-says; more {
			return copy(b, m), nil
		}
		return 0, io.EOF
	}}, func() {}}
	r := anOpenRelay(t, client, upstream)
	r.session.closing = draining
	rest := make(chan string, 1)
	go func() {
		_, _ = io.ReadFull(server, make([]byte, len(query)))
		_, _ = io.WriteString(server, ready)
		b, _ := io.ReadAll(server)
		rest <- string(b)
	}()
	says <- query
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		r.clientToServer()
	}()
	var stream serverStream
	err := r.pump(newSource(upstream), nil, &stream)
	if !errors.Is(err, errEnded) {
		t.Fatal(err)
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		_ = r.shutDown(&stream, err)
	}()
	<-time.After(200 * time.Millisecond) // time for a Terminate that does not wait for the write
	close(upstream.may)
	if got := <-rest; got != terminate {
		t.Errorf("PostgreSQL got %q at the end; want Terminate", got)
	}
	close(says)
	<-left
	<-asked
}
