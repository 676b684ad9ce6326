package gateway

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencegate/fencegate/lock"
)

// lockMetrics tells Prometheus what happens to leases.
type lockMetrics struct {
	wait     prometheus.Histogram
	hold     *prometheus.HistogramVec
	quorum   *prometheus.CounterVec
	failures *prometheus.CounterVec
	renewals prometheus.Counter
	slow     *prometheus.CounterVec
}

var _ lock.Metrics = (*lockMetrics)(nil)

func newLockMetrics() *lockMetrics {
	return &lockMetrics{
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "fencegate_lease_wait_seconds",
			Help:    "Time from asking for a lease to having it, arming included.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}),
		hold: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "fencegate_lease_hold_seconds",
			Help:    "How long leases were held, by how they ended: released or lost.",
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 1800, 3600},
		}, []string{"end"}),
		quorum: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencegate_lease_acquired_total",
			Help: "Leases acquired, by how many nodes had granted when it was decided.",
		}, []string{"granted"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencegate_lease_failures_total",
			Help: "Operations on leases that failed, by cause.",
		}, []string{"operation", "cause"}),
		renewals: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fencegate_lease_renewals_total",
			Help: "Leases extended.",
		}),
		slow: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencegate_lease_slow_node_total",
			Help: "How often a Redis node did not answer within the node timeout.",
		}, []string{"node"}),
	}
}

func (m *lockMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.wait, m.hold, m.quorum, m.failures, m.renewals, m.slow}
}

// Acquired implements [lock.Metrics], as do the others.
func (m *lockMetrics) Acquired(waited time.Duration, granted int) {
	m.wait.Observe(waited.Seconds())
	m.quorum.WithLabelValues(strconv.Itoa(granted)).Inc()
}

func (m *lockMetrics) Failed(operation, cause string) {
	m.failures.WithLabelValues(operation, cause).Inc()
}

func (m *lockMetrics) Ended(held time.Duration, lost bool) {
	end := "released"
	if lost {
		end = "lost"
	}
	m.hold.WithLabelValues(end).Observe(held.Seconds())
}

func (m *lockMetrics) Renewed() { m.renewals.Inc() }

func (m *lockMetrics) Slow(node string) { m.slow.WithLabelValues(node).Inc() }
