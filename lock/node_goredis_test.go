package lock_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// A program's existing clients contain the addresses of its servers and how to reach them.
func TestNodesComeFromTheClientsOfAProgram(t *testing.T) {
	t.Parallel()
	_, servers := own(t, 3, redisserver.Config{})
	var dialed atomic.Int64
	clients := make([]redis.UniversalClient, len(servers))
	for i, s := range servers {
		must(t, client(t, s.Addr).Do(t.Context(), "ACL", "SETUSER", "lockers", "on", ">secret", "~*", "&*", "+@all").Err())
		clients[i] = redis.NewClient(&redis.Options{
			Addr: "node.example:1", Username: "lockers", Password: "secret", DB: 2,
			Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				dialed.Add(1)
				if network != "tcp" || addr != "node.example:1" {
					t.Errorf("dialed %s %s", network, addr)
				}
				return new(net.Dialer).DialContext(ctx, "tcp", s.Addr)
			},
		})
	}
	nodes, err := lock.NodesOf(clients...)
	must(t, err)
	for i := range nodes {
		nodes[i].Name = []string{"a", "b", "c"}[i]
		nodes[i].Addr = nodes[i].Name + ".example:1" // otherwise they look like one node
	}
	for _, c := range clients {
		must(t, c.Close()) // a Locker has its own connections
	}
	l := started(t, lock.Config{Nodes: nodes, NodeTimeout: patient})
	lease, err := l.Acquire(t.Context(), "r")
	must(t, err)
	must(t, lease.Release(t.Context()))
	if dialed.Load() == 0 {
		t.Error("the dialer was not asked")
	}
	for _, s := range servers {
		c := redis.NewClient(&redis.Options{Addr: s.Addr, DB: 2, ReadTimeout: patient})
		if n, err := c.Exists(t.Context(), "fencegate:h").Result(); err != nil || n != 1 {
			t.Errorf("database 2 of %s: %d, %v", s.Addr, n, err)
		}
		check(t, c.Close())
	}
}

func TestTheCredentialsOfAClientAreAskedFor(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 1, redisserver.Config{})
	must(t, client(t, servers[0].Addr).Do(t.Context(), "ACL", "SETUSER", "lockers", "on", ">secret", "~*", "&*", "+@all").Err())
	for name, o := range map[string]*redis.Options{
		"with a context": {CredentialsProviderContext: func(ctx context.Context) (string, string, error) {
			if _, bounded := ctx.Deadline(); !bounded {
				t.Error("a provider may take for ever")
			}
			return "lockers", "secret", nil
		}},
		"without": {CredentialsProvider: func() (string, string) { return "lockers", "secret" }},
	} {
		o.Addr = servers[0].Addr
		c := redis.NewClient(o)
		nodes, err := lock.NodesOf(c)
		must(t, err)
		check(t, c.Close())
		if username, password, err := nodes[0].Login(); username != "lockers" || password != "secret" || err != nil {
			t.Errorf("%s: %q, %v", name, username, err)
		}
		l := started(t, lock.Config{Nodes: nodes, KeyPrefix: cfg.KeyPrefix, NodeTimeout: patient})
		lease, err := l.Acquire(t.Context(), "r")
		must(t, err)
		must(t, lease.Release(t.Context()))
	}
}

func TestClientsThatAreNoNodeAreRefusedByName(t *testing.T) {
	t.Parallel()
	for why, c := range map[string]redis.UniversalClient{
		"redis cluster": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}}),
		"*redis.Ring":   redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}}),
		"Sentinels":     redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"127.0.0.1:1"}}),
	} {
		_, err := lock.NodesOf(c)
		if err == nil || !strings.Contains(err.Error(), why) || !errors.Is(err, lock.ErrCluster) && !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v", why, err)
		}
		_ = c.Close()
	}
	if _, err := lock.NodesOf((*redis.Client)(nil)); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("nil: %v", err)
	}
}

// The dialer of go-redis is bounded only by its own timeout while it waits for the server's TLS handshake.
func TestAClientsDialerIsBounded(t *testing.T) {
	t.Parallel()
	silent, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { check(t, silent.Close()) })
	c := redis.NewClient(&redis.Options{
		Addr: silent.Addr().String(), TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12}, DialTimeout: time.Hour,
	})
	nodes, err := lock.NodesOf(c)
	must(t, err)
	must(t, c.Close())
	ctx, cancel := context.WithCancel(t.Context())
	dialed := make(chan error, 1)
	go func() {
		_, err := nodes[0].Dial(ctx)
		dialed <- err
	}()
	conn, err := silent.Accept()
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	cancel()
	select {
	case err := <-dialed:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it waits for the server")
	}
}
