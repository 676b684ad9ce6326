package etcdlock_test

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/etcdlock"
)

// documented is the client configured as in the package comment.
func documented(t *testing.T, endpoints []string) *clientv3.Client {
	t.Helper()
	return clientOf(t, clientv3.Config{
		Endpoints: endpoints, DialTimeout: 5 * time.Second,
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 2 * time.Second,
	})
}

// A frozen member keeps its connections open. A client that sends keep-alives leaves it.
func TestAFrozenMemberIsLeft(t *testing.T) {
	t.Parallel()
	c := cluster(t, 3, "")
	s := source(t, etcdlock.Config{Client: documented(t, c.Endpoints())})
	for _, member := range c.Members {
		if err := member.Freeze(); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		// Calls go to the members in turn, so six quick cycles in a row use all of them.
		for quick := 0; quick < 6; {
			quick++
			if cycle(t, s) > 3*time.Second {
				quick = 0
			}
			if took := time.Since(begin); took > 40*time.Second {
				t.Fatalf("calls still go to the frozen member after %v", took)
			}
		}
		t.Logf("left within %v", time.Since(begin))
		if err := member.Thaw(); err != nil {
			t.Fatal(err)
		}
	}
}

// cycle is one acquisition and its release.
func cycle(t *testing.T, s *etcdlock.Source) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	begin := time.Now()
	lease, err := s.Acquire(ctx, leasing.Request{Resource: "orders/1001", TTL: ttl})
	if err == nil {
		err = s.Release(ctx, lease.Ref())
	}
	if err != nil {
		t.Fatal(err)
	}
	return time.Since(begin)
}

// etcd closes the connections of clients that send keep-alives without active calls ("too_many_pings").
func TestAnIdleClientIsNotCutOff(t *testing.T) {
	t.Parallel()
	c := documented(t, cluster(t, 1, "").Endpoints())
	cycle(t, source(t, etcdlock.Config{Client: c}))
	ctx, cancel := context.WithTimeout(t.Context(), 35*time.Second) // etcd would close the connection after 30 s
	defer cancel()
	if c.ActiveConnection().WaitForStateChange(ctx, connectivity.Ready) {
		t.Errorf("etcd cut an idle client off; the connection is %v", c.ActiveConnection().GetState())
	}
}
