package lockmetrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencegate/fencegate/internal/recent"
	"github.com/fencegate/fencegate/lock/admin"
)

// A scan of the nodes' locks is reused for scanned, and takes at most scanTimeout.
const (
	scanned     = time.Minute
	scanTimeout = 3 * time.Second
)

// leaks collects the number of resources with a lock that never expires.
type leaks struct {
	admin *admin.Admin
	locks *prometheus.Desc

	latest *recent.Answer[found]
}

// found is the number of such resources, if it is known.
type found struct {
	count int
	known bool
}

func newLeaks(a *admin.Admin) *leaks {
	return &leaks{
		latest: recent.New[found](),
		admin:  a,
		locks: prometheus.NewDesc("fencegate_lease_endless_locks",
			"Resources with a lock without a time to live on some Redis node: it never ends by itself. Scanned once a minute at most.", nil, nil),
	}
}

// Describe implements [prometheus.Collector].
func (k *leaks) Describe(into chan<- *prometheus.Desc) { into <- k.locks }

// Collect implements [prometheus.Collector]. It reports nothing if no node could be scanned.
func (k *leaks) Collect(into chan<- prometheus.Metric) {
	if all := k.latest.Get(scanned, scanTimeout, k.scan); all.known {
		into <- prometheus.MustNewConstMetric(k.locks, prometheus.GaugeValue, float64(all.count))
	}
}

// scan asks the nodes. A scan that did not reach every node counts only if it found a leak.
func (k *leaks) scan(ctx context.Context) found {
	all, err := k.admin.Leaks(ctx)
	resources := make(map[string]bool)
	for _, leak := range all {
		resources[leak.Resource] = true
	}
	return found{len(resources), err == nil || len(resources) > 0}
}
