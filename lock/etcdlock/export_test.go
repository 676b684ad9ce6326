package etcdlock

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// CallTimeout bounds one call.
const CallTimeout = callTimeout

// LeaseBehind is the etcd lease behind the next lease of a length.
func LeaseBehind(ctx context.Context, s *Source, ttl time.Duration) (clientv3.LeaseID, error) {
	one, err := s.store.grants.get(ctx, ttl)
	if err != nil {
		return 0, err
	}
	return one.id, nil
}

// Waiting is how many stand in the line of a resource.
func Waiting(ctx context.Context, s *Source, resource string) int {
	ins, err := s.Inspect(ctx, resource)
	if err != nil {
		return -1
	}
	return ins.Waiters
}

// Die gives up everything without a word to etcd.
func Die(s *Source) {
	s.store.inBackground = func(func(context.Context)) {}
	_ = s.Close()
}
