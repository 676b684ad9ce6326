package gateway

import (
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fencegate/fencegate/migrations"
)

// metrics are the metrics of /metrics, in a registry of their own.
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
		m.gauge("fencegate_principals_last_reload_successful", "1, or 0 if the last attempt to replace the principals was refused: the previous ones stay then.", g.reloads.last)
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
	}
	if g.s3 != nil {
		g.ofS3.register(m, g.s3.Stats)
	}
	g.arms.register(m)
	m.registry.MustRegister(
		newBuildInfo(g.cfg.Version), newPoolMetrics(g.pool.Stat), newCertificateEnds(g.parsed),
		newLooked("fencegate_ready", "1 where a surface can serve, else 0, also while the gateway stops: lease, pg, sql or s3, as of /readyz?for=. Only lease needs Redis. Asked every 5 s at most.", []string{"surface"}, readyFor, g.readiness),
		newLooked("fencegate_uncovered_tables", "Tables that fence.uncovered lists: they could be written unfenced. Asked once a minute at most.", nil, uncoveredFor, g.uncovered),
	)
	return m
}

// newBuildInfo is a metric of value 1 whose labels describe this build.
func newBuildInfo(version string) prometheus.Collector {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "fencegate_build_info", Help: "1, for the version of this gateway, the Go that built it, and the generation of its program, for which a schema may ask.",
	}, []string{"version", "go", "program"})
	info.WithLabelValues(version, runtime.Version(), strconv.Itoa(migrations.Program)).Set(1)
	return info
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

// observe counts a request under its route's pattern. All paths without a route share one label.
func (m *metrics) observe(route, method string, status int, took time.Duration) {
	if route == "" || !slices.Contains([]string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete}, method) {
		route, method = "none", "any" // client input must not become a label value
	}
	m.requests.WithLabelValues(method, route, strconv.Itoa(status)).Observe(took.Seconds())
}
