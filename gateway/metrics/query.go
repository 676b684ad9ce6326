package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencegate/fencegate/internal/recent"
)

// scrapeTimeout bounds the queries of a scrape; Prometheus gives up after 10 s.
const scrapeTimeout = 2 * time.Second

// query is a collector of gauges whose values come from a query.
type query struct {
	desc   *prometheus.Desc
	ask    func(ctx context.Context) map[string]float64
	lasts  time.Duration
	latest *recent.Answer[map[string]float64]
}

// NewQuery returns a collector of gauges. ask returns their values by label, "" where there is none; empty if they are
// not known. Scrapes within the time that an answer lasts share it, so frequent scrapes cost nothing.
func NewQuery(name, help string, label []string, lasts time.Duration, ask func(context.Context) map[string]float64) prometheus.Collector {
	return query{prometheus.NewDesc(name, help, label, nil), ask, lasts, recent.New[map[string]float64]()}
}

// Describe implements [prometheus.Collector].
func (q query) Describe(into chan<- *prometheus.Desc) { into <- q.desc }

// Collect implements [prometheus.Collector].
func (q query) Collect(into chan<- prometheus.Metric) {
	for label, value := range q.latest.Get(q.lasts, scrapeTimeout, q.ask) {
		var labels []string
		if label != "" {
			labels = []string{label}
		}
		into <- prometheus.MustNewConstMetric(q.desc, prometheus.GaugeValue, value, labels...)
	}
}
