//go:build unix

package pgwire

import (
	"bytes"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"
)

// tcpPair returns both ends of a TCP connection.
func tcpPair(t *testing.T) (one, other net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	if one, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if other, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = one.Close(), other.Close() })
	return one, other
}

func TestADirectionThatWaitsHasNoBuffer(t *testing.T) {
	t.Parallel()
	one, other := tcpPair(t)
	r := newSource(one)
	defer r.free()
	if _, err := other.Write([]byte("some")); err != nil {
		t.Fatal(err)
	}
	if b, err := r.read(); err != nil || string(b) != "some" {
		t.Fatalf("%q, %v", b, err)
	}
	err := r.raw.Control(func(fd uintptr) {
		if r.tryRead(fd) || r.buf != nil {
			t.Error("it waits with a buffer")
		}
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAnEncryptedDirectionRestsWithASmallBuffer(t *testing.T) {
	t.Parallel()
	c := new(scripted) // hides its type, as TLS does
	r := newSource(c)
	defer r.free()
	gives := func(n int) (wanted int) {
		t.Helper()
		c.read = func(b []byte) (int, error) {
			wanted = len(b)
			return copy(b, bytes.Repeat([]byte{'x'}, n)), nil
		}
		if b, err := r.read(); err != nil || len(b) != min(n, wanted) {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
		return wanted
	}
	for i, step := range []struct{ gives, wants int }{{10, smallBytes}, {smallBytes, smallBytes}, {bufferBytes, bufferBytes}, {10, bufferBytes}, {10, smallBytes}, {smallBytes, smallBytes}, {bufferBytes, bufferBytes}} {
		if wanted := gives(step.gives); wanted != step.wants {
			t.Errorf("read %d: of %d bytes, want %d", i, wanted, step.wants)
		}
	}
	r.expectPause() // an answer has ended with a full buffer
	if wanted := gives(10); wanted != smallBytes || r.buf != nil {
		t.Errorf("after a rest: %d bytes, and the buffer is kept: %v", wanted, r.buf != nil)
	}
}

func TestLongAnswersPassInLargerReads(t *testing.T) {
	t.Parallel()
	one, other := tcpPair(t)
	r := newSource(one)
	defer r.free()
	const much, ahead = 4 * largeBytes / 10 * 10, 3 * bufferBytes
	sent := bytes.Repeat([]byte("0123456789"), much/10)
	if err := one.(*net.TCPConn).SetReadBuffer(4 * ahead); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		_, err := other.Write(sent)
		written <- err
	}()
	// Much data is available before the first read: a reader that keeps up with the writer need not make larger reads.
	for tick, there := time.NewTicker(time.Millisecond), 0; there < ahead; <-tick.C {
		err := r.raw.Control(func(fd uintptr) { there, _, _ = syscall.Recvfrom(int(fd), make([]byte, ahead), syscall.MSG_PEEK) })
		if err != nil {
			t.Fatal(err)
		}
	}
	var got []byte
	longest := 0
	for len(got) < much {
		b, err := r.read()
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 && len(b) > bufferBytes {
			t.Errorf("a first read of %d bytes", len(b))
		}
		longest = max(longest, len(b))
		got = append(got, b...)
	}
	if err := <-written; err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes came, not those that were sent: %v", len(got), err)
	}
	if longest <= bufferBytes {
		t.Errorf("no read took more than %d bytes", longest)
	}
	err := r.raw.Control(func(fd uintptr) {
		if r.tryRead(fd) || r.buf != nil || r.full {
			t.Error("after the answer it waits with a buffer, or for a long one")
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// keepAlive returns the keep-alive settings of a connection's socket.
func keepAlive(t *testing.T, conn net.Conn) (on, idle int) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var errs [2]error
	err = raw.Control(func(fd uintptr) {
		on, errs[0] = syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_KEEPALIVE)
		idle, errs[1] = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE)
	})
	if err := errors.Join(err, errs[0], errs[1]); err != nil {
		t.Fatal(err)
	}
	return on, idle
}

func TestBothPeersAreProbedSoThatHalfOpenConnectionsEnd(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	srv, err := New(Config{Addr: ln.Addr().String(), Options: Options{KeepAlive: 7 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	client, _ := tcpPair(t)
	newHandler(&srv.services, client, new(place))
	upstream, _, err := srv.upstreams.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = upstream.Close() }()
	for name, conn := range map[string]net.Conn{"client": client, "PostgreSQL": upstream} {
		if on, idle := keepAlive(t, conn); on != 1 || idle != 7 {
			t.Errorf("%s: keepalive %d, after %d s; want 7 s", name, on, idle)
		}
	}
}
