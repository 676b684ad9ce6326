package zklock_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/zklock"
)

// proxy is the address of a server's proxy. forward carries what the client of the n-th connection sends.
func proxy(t *testing.T, server string, forward func(n int, to io.Writer, from io.Reader)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		all.Wait()
	})
	all.Go(func() {
		for n := 1; ; n++ {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", server)
			if err != nil {
				in.Close()
				continue
			}
			all.Go(func() {
				defer in.Close()
				_, _ = io.Copy(in, out)
			})
			all.Go(func() {
				defer out.Close()
				forward(n, out, in)
			})
		}
	})
	return l.Addr().String()
}

// breaking is a proxy that breaks the first connections at the message after the client's greeting.
func breaking(t *testing.T, server string, first int) (addr string) {
	t.Helper()
	return proxy(t, server, func(n int, to io.Writer, from io.Reader) {
		if n > first {
			_, _ = io.Copy(to, from)
		} else if greeting := make([]byte, 4096); pass(to, from, greeting) {
			_, _ = from.Read(greeting) // it is lost with its connection
		}
	})
}

func pass(to io.Writer, from io.Reader, buffer []byte) bool {
	n, err := from.Read(buffer)
	if err == nil {
		_, err = to.Write(buffer[:n])
	}
	return err == nil
}

// The client forgets a digest that was in flight when its connection broke.
func TestADigestOutlivesTheFirstConnections(t *testing.T) {
	t.Parallel()
	e := ensemble(t, 1)
	own := zklock.Config{Servers: e.Addrs(), Prefix: "/own", Digest: "locker:secret"}
	before := source(t, own)
	if err := before.Release(t.Context(), take(t, before, "r", ttl).Ref()); err != nil {
		t.Fatal(err)
	}
	own.Servers = []string{breaking(t, e.Addrs()[0], 2)}
	s := source(t, own)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := s.Acquire(ctx, leasing.UntilDone, leasing.Request{Resource: "r", TTL: ttl}); err != nil { // calls wait for the digest
		t.Error(err)
	}
}

// No server answers. Closing does not wait for the digest.
func TestASourceWithADigestCloses(t *testing.T) {
	t.Parallel()
	s := source(t, zklock.Config{Servers: []string{testenv.DeadAddr(t)}, Digest: "locker:secret"})
	begun := time.Now()
	if err := s.Close(); err != nil || time.Since(begun) > 10*time.Second {
		t.Errorf("%v after %v", err, time.Since(begun))
	}
}
