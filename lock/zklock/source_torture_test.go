//go:build linux

package zklock_test

import (
	"testing"

	"github.com/fencegate/fencegate/internal/leases/torture"
)

// No token repeats or falls, and no resource has two holders, while servers of three freeze for longer than an
// election, or die, and their clocks jump.
func TestTortureOfZooKeeper(t *testing.T) {
	t.Parallel()
	var servers []torture.Server
	clocks := clocksOf(t, 3)
	for i, s := range ensembleWith(t, 3, func(i int) []string { return clocks[i].Env() }).Servers {
		kill := func() error { s.Kill(); return nil }
		servers = append(servers, torture.Server{Addr: s.Addr, Faults: []torture.Fault{
			torture.Frozen(3, s.Freeze, s.Thaw), torture.Killed(1, kill, s.Start), torture.Jumped(1, clocks[i].Set),
		}})
	}
	torture.Run(t, torture.Config{Servers: servers, TTL: torturedTTL, Lag: torturedTTL / 4})
}
