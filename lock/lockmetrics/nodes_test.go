package lockmetrics_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
	"github.com/fencegate/fencegate/lock/lockmetrics"
)

func TestMain(m *testing.M) {
	testenv.VerifyMain(m)
}

// started is a Locker on a new group of n nodes in a bubble, whose events go to m.
func started(t *testing.T, n int, m *lockmetrics.Metrics) (*lock.Locker, []*memredis.Node) {
	t.Helper()
	cfg := lock.Config{Metrics: m}
	nodes := make([]*memredis.Node, n)
	for i := range nodes {
		nodes[i] = memredis.Start(t)
		cfg.Nodes = append(cfg.Nodes, lock.Node{Addr: string(rune('a' + i)), Dialer: nodes[i].Dial})
	}
	l, err := lock.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := admin.Of(l).Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l, nodes
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
	synctest.Test(t, func(t *testing.T) {
		m := lockmetrics.New()
		l, nodes := started(t, 3, m)
		m.Watch(l)
		m.WatchHeld(l.Leases)
		lease, err := l.Acquire(t.Context(), "r")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if leaks := nodes[0].Client(t).Persist(t.Context(), lock.DefaultKeyPrefix+":lock:r").Val(); !leaks {
			t.Fatal("the first node does not have the lock")
		}
		waiting, leave := context.WithCancel(t.Context())
		go func() { _, _ = l.Acquire(waiting, "r") }()
		nodes[2].Stop()
		synctest.Wait()
		nodes[0].Requests.Delay(func() time.Duration { return 30 * time.Millisecond })
		nodes[0].Mini().SetTime(time.Now().Add(time.Minute))
		series := gathered(t, m)
		for name, want := range map[string]float64{
			"fencegate_lease_endless_locks": 1, "fencegate_leases_held": 1, "fencegate_lease_waiters": 1,
			"fencegate_lease_nodes/admitted": 2, "fencegate_lease_nodes/away": 1, "fencegate_lease_nodes/quarantined": 0, "fencegate_lease_nodes/not_admitted": 0,
			"fencegate_lease_node_quarantine_seconds/a": 0, "fencegate_lease_node_clock_offset_seconds/b": 0,
		} {
			if got, known := series[name]; !known || got != want {
				t.Errorf("%s: %v, known %t; want %v", name, got, known, want)
			}
		}
		if offset := series["fencegate_lease_node_clock_offset_seconds/a"]; offset < 59.9 || offset > 60 {
			t.Errorf("the clock of a node that is a minute ahead is %v s ahead", offset)
		}
		for name := range series {
			if strings.HasPrefix(name, "fencegate_lease_node_") && strings.HasSuffix(name, "/c") {
				t.Errorf("a node that is away has %s", name)
			}
		}
		leave()
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if series := gathered(t, m); series["fencegate_leases_held"] != 0 || series["fencegate_lease_waiters"] != 0 {
			t.Errorf("afterwards: %v held, %v wait", series["fencegate_leases_held"], series["fencegate_lease_waiters"])
		}
	})
}
