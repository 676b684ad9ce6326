// Package lockmetrics exports Prometheus metrics of a Locker's leases and nodes. No label contains a resource: the
// labels are causes, numbers of nodes, and node names.
//
//	m := lockmetrics.New()
//	locker, err := lock.New(lock.Config{Nodes: nodes, Metrics: m})
//	if err != nil {
//		return err
//	}
//	m.Watch(locker)
//	m.WatchHeld(locker.Leases)
//	prometheus.MustRegister(m)
package lockmetrics

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// Metrics implements [lock.Metrics] for [lock.Config], and is a [prometheus.Collector]. Its methods are safe for
// concurrent use.
type Metrics struct {
	wait     prometheus.Histogram
	hold     *prometheus.HistogramVec
	quorum   *prometheus.CounterVec
	failures *prometheus.CounterVec
	renewals prometheus.Counter
	slow     *prometheus.CounterVec

	mu     sync.Mutex
	gauges []prometheus.Collector
}

var (
	_ lock.Metrics         = (*Metrics)(nil)
	_ prometheus.Collector = (*Metrics)(nil)
)

// New creates a Metrics.
func New() *Metrics {
	m := &Metrics{
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "fencegate_lease_wait_seconds",
			Help:    "Time from asking for a lease to having it, arming included.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}),
		hold: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "fencegate_lease_hold_seconds",
			Help:    "How long leases were held, by how they ended: released, or found lost by a renewal. Leases that are neither released nor renewed are not counted.",
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 300, 1800, 3600},
		}, []string{"end"}),
		quorum: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencegate_lease_acquired_total",
			Help: "Leases acquired, by how many nodes had granted when it was decided.",
		}, []string{"granted"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencegate_lease_failures_total",
			Help: "Operations on leases that failed: acquire, extend or release; by cause: held, no_quorum, lost, invalid, arm (the fence), context (the caller left) or other. Leases from PostgreSQL have closed, cancelled, deadline and unavailable instead of no_quorum, arm and context.",
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
	// A rate counts the first event only if its series existed before.
	m.hold.WithLabelValues(endReleased)
	m.hold.WithLabelValues(endLost)
	for _, operation := range []string{"acquire", "extend", "release"} {
		for _, cause := range []string{"held", "no_quorum", "lost", "invalid", "arm", "context", "other"} {
			m.failures.WithLabelValues(operation, cause)
		}
	}
	return m
}

// How leases ended, as a label value.
const (
	endReleased = "released"
	endLost     = "lost"
)

// Watch adds the gauges of a Locker: its waiters, its nodes, and the locks that never expire. Call it before the
// collector is registered. A collection asks the nodes, for at most a second, unless they were asked within the last
// five seconds. Once a minute it scans their locks, for at most three seconds.
func (m *Metrics) Watch(l *lock.Locker) {
	slow := func(node string) { m.slow.WithLabelValues(node) }
	a := admin.Of(l)
	m.add(gauge("fencegate_lease_waiters", "Callers of this process that wait for a lease or try for one.", l.Waiters), newNodes(a, slow), newLeaks(a))
}

// WatchHeld adds the gauge of the leases that this process holds: [lock.Locker.Leases], or the program's own count if
// it uses [lock.Locker.Source].
func (m *Metrics) WatchHeld(held func() int) {
	m.add(gauge("fencegate_leases_held", "Leases that this process holds; in a gateway those that it gave or extended, until their end.", held))
}

func (m *Metrics) add(all ...prometheus.Collector) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gauges = append(m.gauges, all...)
}

func gauge(name, help string, value func() int) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) })
}

func (m *Metrics) collectors() []prometheus.Collector {
	m.mu.Lock()
	defer m.mu.Unlock()
	// The gauges first: they register the nodes' names.
	return append(slices.Clone(m.gauges), m.wait, m.hold, m.quorum, m.failures, m.renewals, m.slow)
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(into chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(into)
	}
}

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(into chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(into)
	}
}

// Acquired implements [lock.Metrics], as do the methods below.
func (m *Metrics) Acquired(waited time.Duration, granted int) {
	m.wait.Observe(waited.Seconds())
	m.quorum.WithLabelValues(strconv.Itoa(granted)).Inc()
}

// Failed counts failures by cause.
func (m *Metrics) Failed(operation, cause string) {
	m.failures.WithLabelValues(operation, cause).Inc()
}

// Ended observes how long leases were held.
func (m *Metrics) Ended(held time.Duration, lost bool) {
	end := endReleased
	if lost {
		end = endLost
	}
	m.hold.WithLabelValues(end).Observe(held.Seconds())
}

// Renewed counts extensions.
func (m *Metrics) Renewed() { m.renewals.Inc() }

// Slow counts a node's missing answers.
func (m *Metrics) Slow(node string) { m.slow.WithLabelValues(node).Inc() }
