package etcdlock

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencegate/fencegate/fence/clock/clocktest"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/lifetime"
)

// LeaseBehind returns the etcd lease that the next lease of length ttl will use.
func LeaseBehind(ctx context.Context, s *Source, ttl time.Duration) (clientv3.LeaseID, error) {
	one, err := s.store.grants.get(ctx, ttl)
	if err != nil {
		return 0, err
	}
	return one.id, nil
}

// Waiting returns how many processes wait for a resource.
func Waiting(ctx context.Context, s *Source, resource string) int {
	ins, err := leasing.One(s.Inspect(ctx, resource))
	if err != nil {
		return -1
	}
	return ins.Waiters
}

// Die stops the source without any message to etcd.
func Die(s *Source) {
	s.store.env.Life = lifetime.New(0, leasing.ErrClosed) // nothing of it runs
	_ = s.store.env.Life.Close(nil)
	_ = s.Close()
}

// WithClock gives a configuration's source a clock.
func (c *Config) WithClock() *clocktest.Clock {
	k := clocktest.New()
	c.clock = k.Clock
	return k
}
