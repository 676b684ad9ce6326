package etcdlock_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencegate/fencegate/lock/etcdlock"
)

// After a pause that only the wall clock shows, the next lease gets an etcd lease of its own.
func TestAPauseOfTheMachineEndsSharing(t *testing.T) {
	t.Parallel()
	s := source(t, etcdlock.Config{Client: client(t, cluster(t, 1, "").Endpoints()...)})
	var paused atomic.Int64
	etcdlock.SetWall(s, func(now time.Time) time.Time { return now.Round(0).Add(time.Duration(paused.Load())) })
	before, err := etcdlock.LeaseBehind(t.Context(), s, ttl)
	if err != nil {
		t.Fatal(err)
	}
	paused.Store(int64(5 * time.Second))
	after, err := etcdlock.LeaseBehind(t.Context(), s, ttl)
	if err != nil || after == before {
		t.Errorf("the etcd lease %x is shared across a pause, %v", before, err)
	}
}
