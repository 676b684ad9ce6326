package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencegate/fencegate/gateway/pgwire"
)

// PG counts what happens on the PostgreSQL port.
type PG struct {
	logins, answers prometheus.Histogram
	refused, ended  *prometheus.CounterVec
}

var _ pgwire.Metrics = (*PG)(nil)

// NewPG returns the metrics of a port that has served nobody yet.
func NewPG() *PG {
	buckets := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	return &PG{
		logins: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fencegate_pg_login_seconds", Buckets: buckets,
			Help: "Time from accepting a connection on the PostgreSQL port to the end of its login.",
		}),
		answers: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fencegate_pg_first_byte_seconds", Buckets: buckets,
			Help: "Time from passing on a session's first statement to the first byte of its answer.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencegate_pg_refusals_total", Help: "Connections that the PostgreSQL port refused, by SQLSTATE.",
		}, []string{"sqlstate"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencegate_pg_ended_total", Help: "Open sessions that the PostgreSQL port ended, by SQLSTATE.",
		}, []string{"sqlstate"}),
	}
}

// Register adds the metrics, and the server's statistics, which are read when scraped.
func (m *PG) Register(into *Registry, stats func() pgwire.Stats, relayed func() pgwire.Traffic) {
	into.MustRegister(m.logins, m.answers, m.refused, m.ended, newTraffic(relayed))
	into.Count("fencegate_pg_connections_total", "Connections accepted on the PostgreSQL port.", func() int64 { return stats().Connections })
	into.Count("fencegate_pg_sessions_total", "Connections on the PostgreSQL port that logged in.", func() int64 { return stats().Sessions })
	into.Count("fencegate_pg_refused_total", "Connections that the PostgreSQL port itself refused.", func() int64 { return stats().Refused })
	into.Count("fencegate_pg_superseded_total", "Sessions on the PostgreSQL port that were ended because their grant was superseded.", func() int64 { return stats().Superseded })
	into.Count("fencegate_pg_cancels_total", "Cancel requests passed on by the PostgreSQL port.", func() int64 { return stats().Cancels })
}

// LoggedIn implements [pgwire.Metrics].
func (m *PG) LoggedIn(took time.Duration) { m.logins.Observe(took.Seconds()) }

// Answered implements [pgwire.Metrics].
func (m *PG) Answered(took time.Duration) { m.answers.Observe(took.Seconds()) }

// Refused implements [pgwire.Metrics].
func (m *PG) Refused(sqlstate string) { m.refused.WithLabelValues(sqlstate).Inc() }

// Ended implements [pgwire.Metrics].
func (m *PG) Ended(sqlstate string) { m.ended.WithLabelValues(sqlstate).Inc() }

// traffic reports open sessions and their relayed bytes when scraped.
type traffic struct {
	of              func() pgwire.Traffic
	sessions, bytes *prometheus.Desc
}

var _ prometheus.Collector = traffic{}

func newTraffic(of func() pgwire.Traffic) traffic {
	return traffic{
		of: of,
		sessions: prometheus.NewDesc("fencegate_pg_sessions",
			"Sessions open on the PostgreSQL port, by whether they carry a grant: yes or no.", []string{"grant"}, nil),
		bytes: prometheus.NewDesc("fencegate_pg_bytes_total",
			"Bytes relayed in open sessions, by direction: from_client or to_client.", []string{"direction"}, nil),
	}
}

// Describe implements [prometheus.Collector].
func (t traffic) Describe(into chan<- *prometheus.Desc) { into <- t.sessions; into <- t.bytes }

// Collect implements [prometheus.Collector].
func (t traffic) Collect(into chan<- prometheus.Metric) {
	now := t.of()
	into <- prometheus.MustNewConstMetric(t.sessions, prometheus.GaugeValue, float64(now.Granted), "yes")
	into <- prometheus.MustNewConstMetric(t.sessions, prometheus.GaugeValue, float64(now.Others), "no")
	into <- prometheus.MustNewConstMetric(t.bytes, prometheus.CounterValue, float64(now.FromClient), "from_client")
	into <- prometheus.MustNewConstMetric(t.bytes, prometheus.CounterValue, float64(now.ToClient), "to_client")
}
