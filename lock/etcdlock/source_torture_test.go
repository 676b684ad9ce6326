package etcdlock_test

import (
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases/torture"
	"github.com/fencegate/fencegate/lock/etcdlock"
)

// No token repeats or falls, and no resource has two holders, while members of three freeze for longer than an
// election, or die.
func TestTortureOfEtcd(t *testing.T) {
	t.Parallel()
	var servers []torture.Server
	for _, m := range cluster(t, 3, "").Members {
		kill := func() error { m.Kill(); return nil }
		servers = append(servers, torture.Server{Addr: m.Addr, Freeze: m.Freeze, Thaw: m.Thaw, Kill: kill, Start: m.Start})
	}
	torture.Run(t, torture.Config{
		Servers: servers,
		Open: func(addrs []string) leasing.Source {
			s, err := etcdlock.New(etcdlock.Config{Client: client(t, addrs...)})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		TTL: 1500 * time.Millisecond,
	})
}
