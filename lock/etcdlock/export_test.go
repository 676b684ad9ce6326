package etcdlock

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
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
	ins, err := s.Inspect(ctx, resource)
	if err != nil {
		return -1
	}
	return ins.Waiters
}

// Die stops the source without any message to etcd.
func Die(s *Source) {
	s.store.inBackground = func(func(context.Context)) {}
	_ = s.Close()
}

// SetWall sets the wall clock of a source that is not in use yet.
func SetWall(s *Source, wall func(now time.Time) time.Time) { s.store.grants.wall = wall }
