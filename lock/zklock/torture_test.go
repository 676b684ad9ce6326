package zklock_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
	"github.com/fencegate/fencegate/internal/leases/torture"
	"github.com/fencegate/fencegate/lock/zklock"
)

// No token twice, none that falls and no two holders, while servers of three freeze for longer than an election, or die.
func TestTortureOfZooKeeper(t *testing.T) {
	t.Parallel()
	e := ensemble(t, 3)
	torture.Run(t, torture.Config{
		Open: func() leasing.Source {
			s, err := zklock.New(zklock.Config{Servers: e.Addrs(), MaxTTL: 6 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Fault: func(ctx context.Context) error {
			m := e.Servers[rand.N(len(e.Servers))]
			if rand.N(3) == 0 {
				m.Kill()
				leases.Pause(ctx, rand.N(2*time.Second))
				return m.Start()
			}
			if err := m.Freeze(); err != nil {
				return err
			}
			leases.Pause(ctx, rand.N(4*time.Second))
			err := m.Thaw()
			leases.Pause(ctx, rand.N(time.Second))
			return err
		},
		Processes: 3, For: 25 * time.Second, TTL: 3 * time.Second,
	})
}
