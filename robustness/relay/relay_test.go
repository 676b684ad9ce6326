package relay_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fencegate/fencegate/robustness/relay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a server that echoes and counts.
type echo struct {
	addr  string
	heard atomic.Int64
}

func newEcho(t *testing.T) *echo {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	e := &echo{addr: listener.Addr().String()}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer conn.Close()
				_, _ = io.Copy(conn, io.TeeReader(conn, e))
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		conns.Wait()
	})
	return e
}

func (e *echo) Write(p []byte) (int, error) {
	e.heard.Add(int64(len(p)))
	return len(p), nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func setup(t *testing.T) (*relay.Relay, *echo) {
	t.Helper()
	e := newEcho(t)
	r, err := relay.New(e.addr)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return r, e
}

func dial(t *testing.T, r *relay.Relay) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", r.Addr())
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	return conn
}

// says sends text and waits for the echo.
func says(conn net.Conn, text string) error {
	if _, err := conn.Write([]byte(text)); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if string(got) != text {
		return errors.New("heard " + string(got))
	}
	return nil
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick, limit := time.NewTicker(time.Millisecond), time.NewTimer(20*time.Second)
	defer tick.Stop()
	defer limit.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("still not: %s", what)
		}
	}
}

// silent reports that nothing is received within 50 ms.
func silent(t *testing.T, conn net.Conn) bool {
	t.Helper()
	must(t, conn.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := conn.Read(make([]byte, 1))
	must(t, conn.SetReadDeadline(time.Now().Add(20*time.Second)))
	return errors.Is(err, os.ErrDeadlineExceeded)
}

func TestBytesPassUnchangedAndEndsInOrder(t *testing.T) {
	t.Parallel()
	r, _ := setup(t)
	r.Delay(relay.Requests, time.Millisecond, time.Millisecond)
	conn := dial(t, r)
	sent := make([]byte, 1<<20)
	_, _ = rand.Read(sent)
	go func() {
		_, _ = conn.Write(sent)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, sent) {
		t.Fatalf("%d of %d bytes came back: %v", len(got), len(sent), err)
	}
	eventually(t, "no connection is left", func() bool { return r.Connections() == 0 })
}

func TestADelayCountsInEachDirection(t *testing.T) {
	t.Parallel()
	r, _ := setup(t)
	conn := dial(t, r)
	r.Delay(relay.Requests, 60*time.Millisecond, 0)
	r.Delay(relay.Replies, 40*time.Millisecond, 10*time.Millisecond)
	from := time.Now()
	must(t, says(conn, "x"))
	if took := time.Since(from); took < 100*time.Millisecond {
		t.Errorf("took %v", took)
	}
}

func TestWhatIsHeldComesAfterwards(t *testing.T) {
	t.Parallel()
	for dir, arrives := range map[relay.Direction]int64{relay.Requests: 0, relay.Replies: 2} {
		r, e := setup(t)
		conn := dial(t, r)
		must(t, says(conn, "a"))
		e.heard.Store(0)
		r.Hold(dir, true)
		_, err := conn.Write([]byte("bc"))
		must(t, err)
		if arrives > 0 {
			eventually(t, "the server hears it", func() bool { return e.heard.Load() == arrives })
		}
		if !silent(t, conn) || e.heard.Load() != arrives {
			t.Fatalf("direction %d: the client hears something, or the server %d bytes", dir, e.heard.Load())
		}
		r.Hold(dir, false)
		got := make([]byte, 2)
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != "bc" {
			t.Errorf("direction %d: afterwards %q, %v", dir, got, err)
		}
	}
}

func TestAnEndIsHeldToo(t *testing.T) {
	t.Parallel()
	r, _ := setup(t)
	conn := dial(t, r)
	must(t, says(conn, "a"))
	r.Hold(relay.Requests, true)
	must(t, conn.(*net.TCPConn).CloseWrite())
	if !silent(t, conn) {
		t.Fatal("the server knows of the end")
	}
	r.Heal()
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("afterwards: %v", err)
	}
}

func TestCutsEndConnections(t *testing.T) {
	t.Parallel()
	r, e := setup(t)
	for name, c := range map[string]struct {
		arm   func()
		heard int64
	}{
		"all":    {func() { r.Cut() }, 0},
		"before": {func() { r.CutBefore(1) }, 0},
		"after":  {func() { r.CutAfter(1) }, 5},
		"body":   {func() { r.CutBody(relay.Requests, 3, 1) }, 3},
	} {
		conn := dial(t, r)
		must(t, says(conn, "hello"))
		e.heard.Store(0)
		c.arm()
		if err := says(conn, "world"); err == nil {
			t.Errorf("%s: no error", name)
		}
		eventually(t, name, func() bool { return e.heard.Load() == c.heard && r.Pending() == 0 })
		must(t, says(dial(t, r), "again"))
	}
}

func TestRefusedAndAbsorbed(t *testing.T) {
	t.Parallel()
	r, e := setup(t)
	before := dial(t, r)
	must(t, says(before, "a"))
	r.Refuse(true)
	if conn, err := net.Dial("tcp", r.Addr()); err == nil {
		if err := says(conn, "b"); err == nil {
			t.Error("a new connection is served")
		}
		_ = conn.Close()
	}
	must(t, says(before, "c"))
	r.Heal()
	r.Absorb(true)
	e.heard.Store(0)
	later := dial(t, r)
	_, err := later.Write([]byte("d"))
	must(t, err)
	if !silent(t, later) || e.heard.Load() > 0 {
		t.Error("an absorbed connection leads somewhere")
	}
	r.Heal()
	got := make([]byte, 1)
	if _, err := later.Read(got); err != nil || got[0] != 'd' {
		t.Errorf("afterwards %q, %v", got, err)
	}
}

func TestABarOutlastsHeal(t *testing.T) {
	t.Parallel()
	r, _ := setup(t)
	before := dial(t, r)
	must(t, says(before, "a"))
	r.Bar(true)
	r.Heal()
	if err := says(before, "b"); err == nil {
		t.Error("a connection of before is served")
	}
	if conn, err := net.Dial("tcp", r.Addr()); err == nil {
		if err := says(conn, "c"); err == nil {
			t.Error("a new connection is served")
		}
		_ = conn.Close()
	}
	r.Bar(false)
	must(t, says(dial(t, r), "d"))
}

func TestANetHasOneRelayForEachPair(t *testing.T) {
	t.Parallel()
	e, other := newEcho(t), newEcho(t)
	var n relay.Net
	defer func() { must(t, n.Close()) }()
	a, err := n.Between("client 1", "redis 1", e.addr)
	must(t, err)
	b, err := n.Between("client 2", "redis 1", e.addr)
	must(t, err)
	if again, err := n.Between("client 1", "redis 1", "127.0.0.1:1"); again != a || err != nil {
		t.Errorf("another relay: %v", err)
	}
	if got := n.Find("client", "redis 1"); len(got) != 2 || len(n.Find("gateway", "")) > 0 {
		t.Errorf("found %d", len(got))
	}
	a.Hold(relay.Replies, true)
	a.Retarget(other.addr)
	must(t, says(dial(t, b), "b"))
	n.Heal()
	must(t, says(dial(t, a), "a"))
	if e.heard.Load() != 1 || other.heard.Load() != 1 {
		t.Errorf("heard %d and %d", e.heard.Load(), other.heard.Load())
	}
	must(t, n.Remove("client 2"))
	if len(n.Find("", "")) != 1 {
		t.Error("a relay of a removed client is left")
	}
}
