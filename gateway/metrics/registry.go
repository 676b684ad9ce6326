package metrics

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

// Registry is the registry of a gateway.
type Registry struct {
	*prometheus.Registry

	requests *prometheus.HistogramVec
}

// New returns a registry with the metrics of the process, of the build, and of HTTP requests.
func New(version string) *Registry {
	r := &Registry{
		Registry: prometheus.NewRegistry(),
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "fencegate_http_request_seconds",
			Help:    "Time from an HTTP request's arrival to its answer, waits for leases included.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"method", "route", "status"}),
	}
	r.MustRegister(r.requests, newBuildInfo(version), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// newBuildInfo is a metric of value 1 whose labels describe this build.
func newBuildInfo(version string) prometheus.Collector {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "fencegate_build_info", Help: "1, for the version of this gateway, the Go that built it, and the generation of its program, for which a schema may ask.",
	}, []string{"version", "go", "program"})
	info.WithLabelValues(version, runtime.Version(), strconv.Itoa(migrations.Program)).Set(1)
	return info
}

// Count adds a counter whose value is read when scraped.
func (r *Registry) Count(name, help string, value func() int64) {
	r.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(value()) }))
}

// Gauge adds a gauge whose value is read when scraped.
func (r *Registry) Gauge(name, help string, value func() int64) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(value()) }))
}

// Handler serves the metrics.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r.Registry, promhttp.HandlerOpts{})
}

// Observe counts a request under its route's pattern. All paths without a route share one label.
func (r *Registry) Observe(route, method string, status int, took time.Duration) {
	if route == "" || !slices.Contains([]string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete}, method) {
		route, method = "none", "any" // client input must not become a label value
	}
	r.requests.WithLabelValues(method, route, strconv.Itoa(status)).Observe(took.Seconds())
}
