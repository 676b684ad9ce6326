package lockmetrics_test

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencegate/fencegate/lock/lockmetrics"
)

func TestLeasesAreToldToPrometheus(t *testing.T) {
	t.Parallel()
	m := lockmetrics.New()
	m.Acquired(time.Millisecond, 3)
	m.Failed("acquire", "held")
	m.Ended(time.Second, true)
	m.Ended(time.Second, false)
	m.Renewed()
	m.Slow("node-1")
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := make(map[string]int)
	for _, f := range families {
		series[f.GetName()] = len(f.GetMetric())
	}
	for name, want := range map[string]int{
		"fencegate_lease_wait_seconds": 1, "fencegate_lease_hold_seconds": 2, "fencegate_lease_acquired_total": 1,
		"fencegate_lease_failures_total": 21, "fencegate_lease_renewals_total": 1, "fencegate_lease_slow_node_total": 1,
	} {
		if series[name] != want {
			t.Errorf("%s: %d series; want %d", name, series[name], want)
		}
	}
}
