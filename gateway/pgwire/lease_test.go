//go:build unix

package pgwire_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

// counter grants leases, and counts those that are held.
type counter struct {
	leasing.Source

	asked, give chan struct{}
	out         chan int // the number, after each change
	n           int
}

func newCounter() *counter {
	return &counter{asked: make(chan struct{}, 1), give: make(chan struct{}), out: make(chan int, 10)}
}

// TryAcquire succeeds when the test says so, even if its caller has given up, as if the answer had been in transit.
func (c *counter) TryAcquire(_ context.Context, r leasing.Request) (leasing.Lease, error) {
	c.asked <- struct{}{}
	<-c.give
	c.n++
	c.out <- c.n
	return leaseOf(r), nil
}

// leaseOf returns a lease of an hour, armed with the request's seal.
func leaseOf(r leasing.Request) leasing.Lease {
	return leasing.Lease{Grant: fence.Grant{Resource: r.Resource, Token: 1}, Owner: "owner", Deadline: time.Now().Add(time.Hour)}
}

func (c *counter) Extend(context.Context, leasing.Ref, time.Duration) (time.Duration, error) {
	return 0, errors.New("not now")
}

func (c *counter) Release(context.Context, leasing.Ref) error {
	c.n--
	c.out <- c.n
	return nil
}

func TestALeaseThatComesTooLateIsGivenBack(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]func(r *relay, client net.Conn, serverDies func()){
		"the client has left":      func(_ *relay, client net.Conn, _ func()) { _ = client.Close() },
		"the client is reset":      func(_ *relay, client net.Conn, _ func()) { _ = client.(*net.TCPConn).SetLinger(0); _ = client.Close() },
		"the gateway stops":        func(r *relay, _ net.Conn, _ func()) { r.ask(); refusing(r.t, r) },
		"PostgreSQL has gone away": func(_ *relay, _ net.Conn, serverDies func()) { serverDies() },
	} {
		leases := newCounter()
		dies := make(chan struct{})
		r := start(t, "tcp", upstream(t, func(conn net.Conn) {
			readStartup(conn)
			_, _ = conn.Write(encode(authOK, ready))
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				_, _ = io.Copy(io.Discard, conn)
			}()
			select {
			case <-dies:
			case <-gone:
			}
			_ = conn.Close()
			<-gone
		}), "shop", func(c *pgwire.Config) {
			c.Leases, c.LeaseRules = leases, []pgwire.LeaseRule{{User: "*", Resource: "*"}}
		})
		conn := r.dial()
		send(t, conn, &pgproto3.StartupMessage{
			ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "ada", "database": "shop", "fence.lease": "orders/1;fresh"},
		})
		<-leases.asked
		late(r, conn, func() { close(dies) })
		close(leases.give)
		if n := <-leases.out; n != 1 {
			t.Fatalf("%s: %d leases are out", name, n)
		}
		select {
		case n := <-leases.out:
			if n != 0 {
				t.Errorf("%s: %d leases are out", name, n)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%s: the lease is kept", name)
		}
		testenv.Eventually(t, name+": no session is left", func() bool { return r.srv.Stats().Active == 0 })
		_ = conn.Close()
	}
}
