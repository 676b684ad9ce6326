//go:build linux

package zklock_test

import (
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases/torture"
	"github.com/fencegate/fencegate/lock/zklock"
)

// No token repeats or falls, and no resource has two holders, while servers of three freeze for longer than an
// election, or die, and their clocks jump.
func TestTortureOfZooKeeper(t *testing.T) {
	t.Parallel()
	const lives = 1500 * time.Millisecond
	var servers []torture.Server
	clocks := clocksOf(t, 3)
	for i, s := range ensembleWith(t, 3, func(i int) []string { return clocks[i].Env() }).Servers {
		kill := func() error { s.Kill(); return nil }
		servers = append(servers, torture.Server{Addr: s.Addr, Freeze: s.Freeze, Thaw: s.Thaw, Kill: kill, Start: s.Start, Jump: clocks[i].Set})
	}
	torture.Run(t, torture.Config{
		Servers: servers,
		Open: func(addrs []string) leasing.Source {
			s, err := zklock.New(zklock.Config{Servers: addrs, MaxTTL: 2 * lives})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		TTL: lives,
	})
}
