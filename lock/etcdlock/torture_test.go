package etcdlock_test

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
	"github.com/fencegate/fencegate/internal/leases/torture"
	"github.com/fencegate/fencegate/lock/etcdlock"
)

// No token twice, none that falls and no two holders, while members of three freeze for longer than an election, or die.
func TestTortureOfEtcd(t *testing.T) {
	t.Parallel()
	c := cluster(t, 3, "")
	torture.Run(t, torture.Config{
		Open: func() leasing.Source {
			s, err := etcdlock.New(etcdlock.Config{Client: client(t, c.Endpoints()...)})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Fault: func(ctx context.Context) error {
			m := c.Members[rand.N(len(c.Members))]
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
