package lockmetrics

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A scan of the nodes' locks is reused for scanned, and takes at most scanTimeout.
const (
	scanned     = time.Minute
	scanTimeout = 3 * time.Second
)

// leaks collects the number of resources with a lock that never expires.
type leaks struct {
	locker Watched
	locks  *prometheus.Desc

	mu    sync.Mutex
	at    time.Time
	count int
	known bool
}

func newLeaks(l Watched) *leaks {
	return &leaks{
		locker: l,
		locks: prometheus.NewDesc("fencegate_lease_endless_locks",
			"Resources with a lock without a time to live on some Redis node: it never ends by itself. Scanned once a minute at most.", nil, nil),
	}
}

// Describe implements [prometheus.Collector].
func (k *leaks) Describe(into chan<- *prometheus.Desc) { into <- k.locks }

// Collect implements [prometheus.Collector]. It reports nothing if no node could be scanned.
func (k *leaks) Collect(into chan<- prometheus.Metric) {
	if count, known := k.latest(); known {
		into <- prometheus.MustNewConstMetric(k.locks, prometheus.GaugeValue, float64(count))
	}
}

// latest returns the result of a recent or a new scan. A scan that did not reach every node counts only if it found a
// leak.
func (k *leaks) latest() (count int, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.at.IsZero() || time.Since(k.at) >= scanned {
		ctx, cancel := context.WithTimeout(context.Background(), scanTimeout)
		defer cancel()
		found, err := k.locker.Leaks(ctx)
		resources := make(map[string]bool)
		for _, leak := range found {
			resources[leak.Resource] = true
		}
		k.count, k.known, k.at = len(resources), err == nil || len(resources) > 0, time.Now()
	}
	return k.count, k.known
}
