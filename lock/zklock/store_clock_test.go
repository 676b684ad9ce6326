//go:build linux

package zklock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/testenv/clockshim"
	"github.com/fencegate/fencegate/lock/zklock"
)

func clocksOf(t testing.TB, n int) []*clockshim.Clock {
	t.Helper()
	clocks := []*clockshim.Clock{clockshim.New(t)}
	for len(clocks) < n {
		clocks = append(clocks, clocks[0].Another(t))
	}
	return clocks
}

// ZooKeeper measures session timeouts with its monotonic clock.
func TestAServersWallClockThatJumpsEndsNoLeaseAndKeepsNone(t *testing.T) {
	t.Parallel()
	clock := clocksOf(t, 1)[0]
	e := ensembleWith(t, 1, func(int) []string { return clock.Env() })
	one, other := source(t, zklock.Config{Servers: e.Addrs()}), source(t, zklock.Config{Servers: e.Addrs()})
	lease := take(t, one, "r", ttl)
	for _, d := range []time.Duration{12 * time.Hour, -12 * time.Hour} {
		if err := clock.Set(d); err != nil {
			t.Fatal(err)
		}
		seen := timeOf(t, e.Addrs())
		if off := time.Until(seen) - d; off.Abs() > time.Hour {
			t.Fatalf("the server's clock says %v; want %v from now", seen, d)
		}
		if _, err := other.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: ttl}); !errors.Is(err, leasing.ErrHeld) {
			t.Errorf("%v later by the server's clock: %v; want ErrHeld", d, err)
		}
		if _, err := one.Extend(t.Context(), lease.Ref(), ttl); err != nil {
			t.Errorf("%v later by the server's clock its holder extends: %v", d, err)
		}
	}
	if err := one.Release(t.Context(), lease.Ref()); err != nil {
		t.Fatal(err)
	}
	if next := take(t, other, "r", ttl); next.Grant.Token <= lease.Grant.Token {
		t.Errorf("token %d after %d", next.Grant.Token, lease.Grant.Token)
	}
}

// timeOf returns a server's time, from the creation of a new node.
func timeOf(t *testing.T, servers []string) time.Time {
	t.Helper()
	conn, _, err := zk.Connect(servers, 30*time.Second, zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	node, err := conn.Create("/clock", nil, zk.FlagSequence, zk.WorldACL(zk.PermAll))
	if err != nil {
		t.Fatal(err)
	}
	_, stat, err := conn.Get(node)
	if err != nil {
		t.Fatal(err)
	}
	return time.UnixMilli(stat.Ctime)
}
