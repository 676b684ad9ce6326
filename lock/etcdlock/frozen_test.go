package etcdlock_test

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/etcdlock"
)

// A member that freezes keeps its connections: a client that sends keep-alives leaves it.
func TestAFrozenMemberIsLeft(t *testing.T) {
	t.Parallel()
	c := cluster(t, 3, "")
	s := source(t, etcdlock.Config{Client: clientOf(t, clientv3.Config{
		Endpoints: c.Endpoints(), DialTimeout: 5 * time.Second,
		DialKeepAliveTime: 2 * time.Second, DialKeepAliveTimeout: 2 * time.Second, PermitWithoutStream: true,
	})})
	for _, member := range c.Members {
		if err := member.Freeze(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		lease, err := s.Acquire(ctx, leasing.Request{Resource: "orders/1001", TTL: ttl})
		if err == nil {
			err = s.Release(ctx, lease.Ref())
		}
		cancel()
		if err != nil {
			t.Error(err)
		}
		if err := member.Thaw(); err != nil {
			t.Fatal(err)
		}
	}
}
