package lock_test

import (
	"slices"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/leases/torture"
	"github.com/fencegate/fencegate/lock"
)

// For Redis, a waiter whose process is suspended, or whose connection is half open, receives its call. It loses its
// place.
func TestAWaiterThatStandsStillIsPassedOver(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	holder := started(t, cfg)
	home := holder.Home("r")
	lease, err := holder.Acquire(t.Context(), "r", lock.WithTTL(time.Minute))
	must(t, err)
	var addrs []string
	for _, n := range cfg.Nodes {
		addrs = append(addrs, n.Addr)
	}
	stopped := torture.Start(t, tortureSetup{
		Prefix: prefixOf(cfg), Authority: newAuthority(t).path, MaxTTL: maxTTL, NodeTimeout: patient, Once: time.Second,
	}, addrs)
	eventually(t, 20*time.Second, "it waits", func() bool { return queued(t, cfg, home, "r") == 1 })
	admin := client(t, cfg.Nodes[home].Addr)
	queue := func() []string { return admin.ZRange(t.Context(), prefixOf(cfg)+":wait:r", 0, -1).Val() }
	first := queue()
	must(t, stopped.Stop())
	waiter, got := locker(t, cfg), make(chan *lock.Lease, 1)
	go func() {
		next, err := waiter.Acquire(t.Context(), "r", lock.WithTTL(time.Minute))
		check(t, err)
		got <- next
	}()
	other := func(id string) bool { return !slices.Contains(first, id) }
	eventually(t, 20*time.Second, "the other waits, too", func() bool { return slices.ContainsFunc(queue(), other) })
	eventually(t, 20*time.Second, "the one that stands is passed over", func() bool {
		all := queue()
		return len(all) == 1 && other(all[0])
	})
	must(t, lease.Release(t.Context()))
	must(t, (<-got).Release(t.Context()))
	again, err := holder.Acquire(t.Context(), "r", lock.WithTTL(time.Minute))
	must(t, err)
	must(t, stopped.Cont())
	eventually(t, 20*time.Second, "it has a place again", func() bool { return queued(t, cfg, home, "r") == 1 })
	must(t, again.Release(t.Context()))
	must(t, stopped.End()) // it has held its lease until the end
}
