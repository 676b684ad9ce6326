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
	apart := cfg
	apart.Nodes = slices.Clone(cfg.Nodes)
	var links []*torture.Link
	for i, n := range cfg.Nodes {
		links = append(links, torture.NewLink(t, n.Addr))
		apart.Nodes[i].Addr = links[i].Addr
	}
	stopped := inLine(t, locker(t, apart))
	eventually(t, 20*time.Second, "it waits", func() bool { return queued(t, cfg, home, "r") == 1 })
	admin := client(t, cfg.Nodes[home].Addr)
	queue := func() []string { return admin.ZRange(t.Context(), prefixOf(cfg)+":wait:r", 0, -1).Val() }
	first := queue()
	for _, l := range links {
		l.Shut()
	}
	got := inLine(t, locker(t, cfg))
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
	for _, l := range links {
		l.Open()
	}
	eventually(t, 20*time.Second, "it has a place again", func() bool { return queued(t, cfg, home, "r") == 1 })
	must(t, again.Release(t.Context()))
	must(t, (<-stopped).Release(t.Context()))
}

// inLine waits for a lease.
func inLine(t *testing.T, l *lock.Locker) <-chan *lock.Lease {
	got := make(chan *lock.Lease, 1)
	go func() {
		lease, err := l.Acquire(t.Context(), "r", lock.WithTTL(time.Minute))
		check(t, err)
		got <- lease
	}()
	return got
}
