package etcdlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/leasing/leasingtest"
	"github.com/fencegate/fencegate/internal/etcdserver"
	"github.com/fencegate/fencegate/lock/etcdlock"
)

const ttl = time.Minute

// cluster is the test's own cluster.
func cluster(t testing.TB, n int, snapshot string) *etcdserver.Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := etcdserver.Start(ctx, n, snapshot)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// client is the client of one process.
func client(t testing.TB, endpoints ...string) *clientv3.Client {
	t.Helper()
	return clientOf(t, clientv3.Config{Endpoints: endpoints})
}

func clientOf(t testing.TB, cfg clientv3.Config) *clientv3.Client {
	t.Helper()
	cfg.Logger = zap.NewNop()
	c, err := clientv3.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// source is the Source of one process.
func source(t testing.TB, cfg etcdlock.Config) *etcdlock.Source {
	t.Helper()
	s, err := etcdlock.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func take(t testing.TB, s *etcdlock.Source, resource string, ttl time.Duration) leasing.Lease {
	t.Helper()
	lease, err := leasing.One(s.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: resource, TTL: ttl}))
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func TestLeasesOfEtcdFollowTheRules(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]int{"one member": 1, "three members": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := cluster(t, n, "")
			leasingtest.Run(t, func(t testing.TB) leasingtest.Open {
				prefix := strings.ReplaceAll(t.Name(), "/", "-")
				return func(armer leasing.Armer) leasing.Source {
					s, err := etcdlock.New(etcdlock.Config{Client: client(t, c.Endpoints()...), Prefix: prefix, Armer: armer})
					if err != nil {
						t.Fatal(err)
					}
					return s
				}
			})
		})
	}
}

func TestABadConfigIsRefused(t *testing.T) {
	t.Parallel()
	c := client(t, "127.0.0.1:1")
	for name, cfg := range map[string]etcdlock.Config{
		"no client":      {},
		"endless leases": {Client: c, MaxTTL: 1 << 60},
		"holder":         {Client: c, Holder: "a\nb"},
		"prefix":         {Client: c, Prefix: "a\x00b"},
		"only a slash":   {Client: c, Prefix: "/"},
	} {
		if _, err := etcdlock.New(cfg); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v; want ErrInvalid", name, err)
		}
	}
}
