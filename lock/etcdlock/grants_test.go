package etcdlock_test

import (
	"testing"
	"time"

	"github.com/fencegate/fencegate/lock/etcdlock"
)

// After a pause of the machine, the next lease gets an etcd lease of its own.
func TestAPauseOfTheMachineEndsSharing(t *testing.T) {
	t.Parallel()
	cfg := etcdlock.Config{Client: client(t, cluster(t, 1, "").Endpoints()...)}
	clock := cfg.WithClock()
	s := source(t, cfg)
	before, err := etcdlock.LeaseBehind(t.Context(), s, ttl)
	if err != nil {
		t.Fatal(err)
	}
	clock.Suspend(5 * time.Second)
	after, err := etcdlock.LeaseBehind(t.Context(), s, ttl)
	if err != nil || after == before {
		t.Errorf("the etcd lease %x is shared across a pause, %v", before, err)
	}
}
