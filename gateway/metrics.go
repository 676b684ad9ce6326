package gateway

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are what /metrics tells, in a registry of its own.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.HistogramVec
}

func newMetrics(g *Gateway) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "fencegate_http_request_seconds",
			Help:    "Time from an HTTP request's arrival to its answer, waits for leases included.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"method", "route", "status"}),
	}
	m.registry.MustRegister(m.requests, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if g.seen != nil {
		m.registry.MustRegister(g.seen.refusals)
	}
	if g.cfg.Principals != nil {
		m.gauge("fencegate_principals_last_reload_successful", "1 unless the last attempt to replace the principals was refused; those before stay then.", g.reloads.last)
	}
	if g.leasing != nil {
		m.registry.MustRegister(g.leasing)
	}
	if g.pg != nil {
		p := g.ofPG
		m.registry.MustRegister(p.logins, p.answers, p.refused, p.ended, newTraffic(g.pg.Traffic))
		m.count("fencegate_pg_connections_total", "Connections accepted on the PostgreSQL port.", func() int64 { return g.pg.Stats().Connections })
		m.count("fencegate_pg_sessions_total", "Connections on the PostgreSQL port that logged in.", func() int64 { return g.pg.Stats().Sessions })
		m.count("fencegate_pg_refused_total", "Connections that the PostgreSQL port itself refused.", func() int64 { return g.pg.Stats().Refused })
		m.count("fencegate_pg_superseded_total", "Sessions on the PostgreSQL port that were ended because their grant was superseded.", func() int64 { return g.pg.Stats().Superseded })
		m.count("fencegate_pg_cancels_total", "Cancel requests passed on by the PostgreSQL port.", func() int64 { return g.pg.Stats().Cancels })
		m.gauge("fencegate_pg_sessions", "Sessions open on the PostgreSQL port.", func() int64 { return g.pg.Stats().Active })
	}
	if g.s3 != nil {
		g.ofS3.register(m, g.s3.Stats)
	}
	m.gauge("fencegate_postgres_pool_connections", "Connections of the gateway's own pool.", func() int64 { return int64(g.pool.Stat().TotalConns()) })
	m.gauge("fencegate_postgres_pool_acquired", "Connections of the gateway's own pool that are in use.", func() int64 { return int64(g.pool.Stat().AcquiredConns()) })
	return m
}

func (m *metrics) count(name, help string, value func() int64) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(value()) }))
}

func (m *metrics) gauge(name, help string, value func() int64) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) }))
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// observe counts a request under its route's pattern; a path that has none is
// one label, whatever it is.
func (m *metrics) observe(route, method string, status int, took time.Duration) {
	if route == "" || !slices.Contains([]string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete}, method) {
		route, method = "none", "any" // what clients invent must not make label values
	}
	m.requests.WithLabelValues(method, route, strconv.Itoa(status)).Observe(took.Seconds())
}
