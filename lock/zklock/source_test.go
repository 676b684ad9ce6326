package zklock_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/leasing/leasingtest"
	"github.com/fencegate/fencegate/internal/zkserver"
	"github.com/fencegate/fencegate/lock/zklock"
)

const ttl = 2 * time.Minute

// ensemble is the test's own ensemble.
func ensemble(t testing.TB, n int) *zkserver.Ensemble {
	t.Helper()
	return ensembleWith(t, n, func(int) []string { return nil })
}

func ensembleWith(t testing.TB, n int, env func(i int) []string) *zkserver.Ensemble {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	e, err := zkserver.StartWith(ctx, n, env)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// source is the Source of one process.
func source(t testing.TB, cfg zklock.Config) *zklock.Source {
	t.Helper()
	if cfg.MaxTTL == 0 {
		cfg.MaxTTL = ttl
	}
	s, err := zklock.New(cfg)
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

func take(t testing.TB, s *zklock.Source, resource string, ttl time.Duration) leasing.Lease {
	t.Helper()
	lease, err := leasing.One(s.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: resource, TTL: ttl}))
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func TestLeasesOfZooKeeperFollowTheRules(t *testing.T) {
	t.Parallel()
	for name, n := range map[string]int{"one server": 1, "three servers": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := ensemble(t, n)
			var groups atomic.Int64
			leasingtest.Run(t, func(t testing.TB) leasingtest.Open {
				prefix := fmt.Sprintf("/group-%d", groups.Add(1))
				return func(armer leasing.Armer) leasing.Source {
					s, err := zklock.New(zklock.Config{Servers: e.Addrs(), Prefix: prefix, Armer: armer, MaxTTL: leasingtest.TTL})
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
	servers := []string{"127.0.0.1:1"}
	for name, cfg := range map[string]zklock.Config{
		"no servers":     {},
		"endless leases": {Servers: servers, MaxTTL: 1 << 60},
		"holder":         {Servers: servers, Holder: "a\nb"},
		"prefix":         {Servers: servers, Prefix: "/a/b"},
		"digest":         {Servers: servers, Digest: "user"},
	} {
		if _, err := zklock.New(cfg); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v; want ErrInvalid", name, err)
		}
	}
}
