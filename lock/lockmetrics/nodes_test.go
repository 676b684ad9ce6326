package lockmetrics_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/lockmetrics"
)

func TestMain(m *testing.M) {
	testenv.VerifyMain(m)
}

// initialise admits the nodes of a new group. It repeats what comes too late, because a query of the nodes has a second.
func initialise(t *testing.T, l *lock.Locker) {
	t.Helper()
	testenv.Eventually(t, "the nodes answer in time", func() bool {
		err := l.Init(t.Context())
		if err != nil && !errors.Is(err, lock.ErrNodeTimeout) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// gathered is the value of each series, by its name and the value of its label.
func gathered(t *testing.T, m *lockmetrics.Metrics) map[string]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := make(map[string]float64)
	for _, f := range families {
		for _, one := range f.GetMetric() {
			name := f.GetName()
			for _, label := range one.GetLabel() {
				name += "/" + label.GetValue()
			}
			if one.GetGauge() != nil {
				series[name] = one.GetGauge().GetValue()
			}
		}
	}
	return series
}

func TestAGroupIsSeenAsItIs(t *testing.T) {
	t.Parallel()
	servers := testenv.OwnRedis(t, 3)
	m := lockmetrics.New()
	cfg := lock.Config{NodeTimeout: 20 * time.Second, Metrics: m}
	for i, s := range servers {
		cfg.Nodes = append(cfg.Nodes, lock.Node{Name: []string{"a", "b", "c"}[i], Addr: s.Addr})
	}
	l, err := lock.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	m.Watch(l)
	m.WatchHeld(l.Held)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	initialise(t, l)
	leak := redis.NewClient(&redis.Options{Addr: servers[0].Addr})
	t.Cleanup(func() { _ = leak.Close() })
	var lease *lock.Lease
	for leaks := false; !leaks; { // a quorum has the lock, and perhaps not this node
		if lease, err = l.Acquire(ctx, "r", lock.WithTTL(lock.DefaultMaxTTL)); err != nil {
			t.Fatal(err)
		}
		if leaks, err = leak.Persist(ctx, lock.DefaultKeyPrefix+":lock:r").Result(); err != nil {
			t.Fatal(err)
		}
		if !leaks {
			lease.ReleaseAsync()
		}
	}
	waiting, leave := context.WithCancel(ctx)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = l.Acquire(waiting, "r")
	}()
	for l.Waiters() == 0 {
		select {
		case <-ctx.Done():
			t.Fatal("nobody waits")
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err := servers[2].Kill(); err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{
		"fencegate_lease_endless_locks": 1, "fencegate_leases_held": 1, "fencegate_lease_waiters": 1, "fencegate_lease_node_quarantine_seconds/a": 0,
		"fencegate_lease_nodes/admitted": 2, "fencegate_lease_nodes/away": 1, "fencegate_lease_nodes/quarantined": 0, "fencegate_lease_nodes/not_admitted": 0,
	}
	var series map[string]float64
	testenv.Eventually(t, "the nodes answer in time", func() error {
		series = gathered(t, m)
		for name, want := range want {
			if got, told := series[name]; got != want || !told {
				return fmt.Errorf("%s: %v, want %v", name, got, want)
			}
		}
		return nil
	})
	if offset, told := series["fencegate_lease_node_clock_offset_seconds/a"]; !told || offset < -10 || offset > 10 {
		t.Errorf("the clock of a node on this machine is %v s ahead", offset)
	}
	if _, told := series["fencegate_lease_node_clock_offset_seconds/c"]; told {
		t.Error("the clock of a node that is away is told")
	}
	leave()
	<-gone
	_ = lease.Release(ctx)
	if series := gathered(t, m); series["fencegate_leases_held"] != 0 || series["fencegate_lease_waiters"] != 0 {
		t.Errorf("afterwards: %v held, %v wait", series["fencegate_leases_held"], series["fencegate_lease_waiters"])
	}
}
