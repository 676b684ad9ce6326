package etcdlock_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/etcdlock"
)

// documented is a client's configuration as in the package comment.
func documented(endpoints []string) clientv3.Config {
	return clientv3.Config{
		Endpoints: endpoints, DialTimeout: 5 * time.Second,
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
	}
}

// connections counts a client's connections to each member.
type connections struct {
	mu           sync.Mutex
	made, closed map[string]int
}

func (c *connections) dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made[addr]++
	return &counted{Conn: conn, end: sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.closed[addr]++
	})}, nil
}

// to returns how many were made to a member, and how many of them were closed.
func (c *connections) to(addr string) (made, closed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.made[addr], c.closed[addr]
}

type counted struct {
	net.Conn
	end func()
}

func (c *counted) Close() error {
	c.end()
	return c.Conn.Close()
}

// A frozen member keeps its connections open. A client that sends keep-alives closes those that it has to it.
func TestAFrozenMemberIsLeft(t *testing.T) {
	t.Parallel()
	c := cluster(t, 3, "")
	all := &connections{made: make(map[string]int), closed: make(map[string]int)}
	cfg := documented(c.Endpoints())
	cfg.DialOptions = []grpc.DialOption{grpc.WithContextDialer(all.dial)}
	s := source(t, etcdlock.Config{Client: clientOf(t, cfg)})
	cycle(t, s)
	for _, member := range c.Members {
		var made int
		testenv.Eventually(t, "a connection to "+member.Addr, func() bool {
			made, _ = all.to(member.Addr)
			return made > 0
		})
		if err := member.Freeze(); err != nil {
			t.Fatal(err)
		}
		calls, end := context.WithCancel(t.Context())
		var calling sync.WaitGroup
		calling.Go(func() { // to each member in turn; keep-alives are sent during calls
			for calls.Err() == nil {
				_, _ = s.Inspect(calls, "orders/1001")
			}
		})
		testenv.Eventually(t, "the connections to the frozen member are closed", func() bool {
			_, closed := all.to(member.Addr)
			return closed >= made
		})
		end()
		calling.Wait()
		cycle(t, s)
		if err := member.Thaw(); err != nil {
			t.Fatal(err)
		}
	}
}

// cycle is one acquisition and its release.
func cycle(t *testing.T, s *etcdlock.Source) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lease, err := leasing.One(s.Acquire(ctx, leasing.UntilDone, leasing.Request{Resource: "orders/1001", TTL: ttl}))
	if err == nil {
		err = s.Release(ctx, lease.Ref())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// etcd closes the connections of clients that send keep-alives without active calls ("too_many_pings").
func TestAnIdleClientIsNotCutOff(t *testing.T) {
	t.Parallel()
	c := clientOf(t, documented(cluster(t, 1, "").Endpoints()))
	cycle(t, source(t, etcdlock.Config{Client: c}))
	ctx, cancel := context.WithTimeout(t.Context(), 35*time.Second) // etcd would close the connection after 30 s
	defer cancel()
	if c.ActiveConnection().WaitForStateChange(ctx, connectivity.Ready) {
		t.Errorf("etcd cut an idle client off; the connection is %v", c.ActiveConnection().GetState())
	}
}
