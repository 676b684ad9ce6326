package metrics

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// pool reports the state of the gateway's own pool when scraped.
type pool struct {
	stat     func() *pgxpool.Stat
	gauges   map[string]poolGauge // by state
	states   *prometheus.Desc
	most     *prometheus.Desc
	acquires *prometheus.Desc
	waits    *prometheus.Desc
	waited   *prometheus.Desc
	given    *prometheus.Desc
}

type poolGauge func(*pgxpool.Stat) int32

var _ prometheus.Collector = pool{}

// NewPool returns the collector of a pool.
func NewPool(stat func() *pgxpool.Stat) prometheus.Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("fencegate_postgres_pool_"+name, help, labels, nil)
	}
	return pool{
		stat: stat,
		gauges: map[string]poolGauge{
			"in_use": (*pgxpool.Stat).AcquiredConns, "idle": (*pgxpool.Stat).IdleConns, "opening": (*pgxpool.Stat).ConstructingConns,
		},
		states:   desc("connections", "Connections of the gateway's own pool, by state: in_use, idle or opening.", "state"),
		most:     desc("max_connections", "How many connections the gateway's own pool may have."),
		acquires: desc("acquires_total", "How often a connection was taken from the gateway's own pool."),
		waits:    desc("waits_total", "How often a caller waited for a connection of the gateway's own pool, because none was idle."),
		waited:   desc("wait_seconds_total", "How long callers waited for connections of the gateway's own pool, because none was idle."),
		given:    desc("cancelled_total", "How often the wait for a connection of the gateway's own pool was given up."),
	}
}

// Describe implements [prometheus.Collector].
func (p pool) Describe(into chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{p.states, p.most, p.acquires, p.waits, p.waited, p.given} {
		into <- d
	}
}

// Collect implements [prometheus.Collector].
func (p pool) Collect(into chan<- prometheus.Metric) {
	s := p.stat()
	for state, value := range p.gauges {
		into <- prometheus.MustNewConstMetric(p.states, prometheus.GaugeValue, float64(value(s)), state)
	}
	into <- prometheus.MustNewConstMetric(p.most, prometheus.GaugeValue, float64(s.MaxConns()))
	into <- prometheus.MustNewConstMetric(p.acquires, prometheus.CounterValue, float64(s.AcquireCount()))
	into <- prometheus.MustNewConstMetric(p.waits, prometheus.CounterValue, float64(s.EmptyAcquireCount()))
	into <- prometheus.MustNewConstMetric(p.waited, prometheus.CounterValue, s.EmptyAcquireWaitTime().Seconds())
	into <- prometheus.MustNewConstMetric(p.given, prometheus.CounterValue, float64(s.CanceledAcquireCount()))
}
