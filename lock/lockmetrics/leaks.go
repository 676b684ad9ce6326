package lockmetrics

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A scan of the nodes' locks counts for scanned, and lasts scanTimeout at most.
const (
	scanned     = time.Minute
	scanTimeout = 3 * time.Second
)

// leaks collects how many resources have a lock that never ends.
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

// Collect implements it too. It tells nothing where no node could be scanned.
func (k *leaks) Collect(into chan<- prometheus.Metric) {
	if count, known := k.latest(); known {
		into <- prometheus.MustNewConstMetric(k.locks, prometheus.GaugeValue, float64(count))
	}
}

// latest is what a scan has found, of now or of a moment ago. One that did not see every
// node counts where it found something.
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
