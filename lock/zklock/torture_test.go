package zklock_test

import (
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases/torture"
	"github.com/fencegate/fencegate/lock/zklock"
)

// No token twice, none that falls and no two holders, while servers of three freeze for longer than an election, or die.
func TestTortureOfZooKeeper(t *testing.T) {
	t.Parallel()
	const lives = 1500 * time.Millisecond
	var servers []torture.Server
	for _, s := range ensemble(t, 3).Servers {
		kill := func() error { s.Kill(); return nil }
		servers = append(servers, torture.Server{Addr: s.Addr, Freeze: s.Freeze, Thaw: s.Thaw, Kill: kill, Start: s.Start})
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
