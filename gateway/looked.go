package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/wire"
)

const (
	// readyFor is how long scrapes share the result of a readiness check.
	readyFor = 5 * time.Second
	// uncoveredFor is how long scrapes share the count of uncovered tables, which reads the catalog.
	uncoveredFor = time.Minute
	// scrapeTimeout bounds the queries of a scrape; Prometheus gives up after 10 s.
	scrapeTimeout = 2 * time.Second
)

// looked is a collector whose values come from a query. Scrapes within the time that a result counts share it, so
// frequent scrapes cost nothing.
type looked struct {
	desc *prometheus.Desc
	look func(ctx context.Context) map[string]float64 // by label, "" where there is none; empty if not known
	last time.Duration

	mu    sync.Mutex
	at    time.Time
	found map[string]float64
}

func newLooked(name, help string, label []string, last time.Duration, look func(context.Context) map[string]float64) *looked {
	return &looked{desc: prometheus.NewDesc(name, help, label, nil), last: last, look: look}
}

// Describe implements [prometheus.Collector].
func (l *looked) Describe(into chan<- *prometheus.Desc) { into <- l.desc }

// Collect implements [prometheus.Collector].
func (l *looked) Collect(into chan<- prometheus.Metric) {
	for label, value := range l.latest() {
		var labels []string
		if label != "" {
			labels = []string{label}
		}
		into <- prometheus.MustNewConstMetric(l.desc, prometheus.GaugeValue, value, labels...)
	}
}

func (l *looked) latest() map[string]float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at.IsZero() || time.Since(l.at) >= l.last {
		ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
		defer cancel()
		l.found, l.at = l.look(ctx), time.Now()
	}
	return l.found
}

// readiness returns 1 for each port that can serve, else 0.
func (g *Gateway) readiness(ctx context.Context) map[string]float64 {
	needs := append(g.needs(), need{Check: api.Check{Part: wire.PartPostgres, Run: g.confirmed}})
	found := make([]error, len(needs))
	var running sync.WaitGroup
	for i, c := range needs {
		running.Go(func() { found[i] = c.Run(ctx) })
	}
	running.Wait()
	ready := map[string]float64{wire.SurfaceLease: 1}
	for surface, on := range map[string]bool{wire.SurfacePG: g.pg != nil, wire.SurfaceS3: g.s3 != nil, wire.SurfaceSQL: g.sql != nil} {
		if on {
			ready[surface] = 1
		}
	}
	for surface := range ready {
		for i, need := range needs {
			if need.hinders(surface, found[i]) || g.api.Leaving() {
				ready[surface] = 0
			}
		}
	}
	return ready
}

const sqlCountUncovered = `SELECT count(DISTINCT relation) FROM fence.uncovered`

// uncovered counts the tables that should be guarded and can be written unfenced.
func (g *Gateway) uncovered(ctx context.Context) map[string]float64 {
	var tables float64
	if err := g.pool.QueryRow(ctx, sqlCountUncovered).Scan(&tables); err != nil {
		return nil // /readyz reports the error
	}
	return map[string]float64{"": tables}
}
