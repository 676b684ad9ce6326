package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencegate/fencegate/gateway/objects/maintenance"
	"github.com/fencegate/fencegate/gateway/s3"
)

// S3 counts what happens on the S3 port.
type S3 struct {
	requests *prometheus.CounterVec
	refusals *prometheus.CounterVec
	answers  *prometheus.HistogramVec
	commits  prometheus.Histogram
	swept    *prometheus.CounterVec
	sweeps   *prometheus.CounterVec
	last     prometheus.Gauge
}

var _ s3.Metrics = (*S3)(nil)

// NewS3 returns the metrics of a port that has served nobody yet.
func NewS3() *S3 {
	buckets := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	m := &S3{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencegate_s3_requests_total", Help: "Requests on the S3 port, by operation and status; the operation is none if a request matched no operation.",
		}, []string{"operation", "status"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencegate_s3_refusals_total", Help: "Requests on the S3 port that were answered with an error, by S3's code.",
		}, []string{"code"}),
		answers: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "fencegate_s3_first_byte_seconds", Buckets: buckets,
			Help: "Time from a request's headers to the first byte of its answer, which for an upload is after its commit.",
		}, []string{"operation"}),
		commits: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fencegate_s3_commit_seconds", Buckets: buckets,
			Help: "Time of the transaction that checks the fence and makes an upload visible.",
		}),
		swept: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencegate_s3_swept_total",
			Help: "What sweeps did, by step: blobs that the database did not know (adopted; named: left alone, since a version lists them), versions pruned, deletions forgotten, blobs condemned, bytes of blobs deleted.",
		}, []string{"step"}),
		sweeps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencegate_s3_sweeps_total", Help: "Sweeps of the blobs that ended, by outcome: done or failed.",
		}, []string{"outcome"}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fencegate_s3_last_sweep_timestamp_seconds", Help: "Unix time of this gateway's last successful sweep of the blobs; before the first one, of the gateway's start.",
		}),
	}
	m.last.SetToCurrentTime()
	m.sweeps.WithLabelValues(sweepDone)
	m.sweeps.WithLabelValues(sweepFailed)
	m.steps(maintenance.Swept{})
	return m
}

// The outcomes of sweeps, as label values.
const (
	sweepDone   = "done"
	sweepFailed = "failed"
)

// Answered implements [s3.Metrics].
func (m *S3) Answered(operation string, status int, code string, took time.Duration) {
	m.requests.WithLabelValues(operation, strconv.Itoa(status)).Inc()
	m.answers.WithLabelValues(operation).Observe(took.Seconds())
	if code != "" {
		m.refusals.WithLabelValues(code).Inc()
	}
}

// Committed implements [s3.Metrics].
func (m *S3) Committed(took time.Duration) { m.commits.Observe(took.Seconds()) }

// Swept counts what a sweep did.
func (m *S3) Swept(s maintenance.Swept, err error) {
	m.steps(s)
	if err != nil {
		m.sweeps.WithLabelValues(sweepFailed).Inc()
		return
	}
	m.sweeps.WithLabelValues(sweepDone).Inc()
	m.last.SetToCurrentTime()
}

func (m *S3) steps(s maintenance.Swept) {
	for step, n := range map[string]int{
		"adopted": s.Adopted, "named": s.Listed, "pruned": s.Pruned, "forgotten": s.Forgotten, "condemned": s.Condemned, "deleted": s.Deleted,
	} {
		m.swept.WithLabelValues(step).Add(float64(n))
	}
}

// Register adds the metrics, and the server's statistics, which are read when scraped.
func (m *S3) Register(into *Registry, stats func() s3.Stats) {
	into.MustRegister(m.requests, m.refusals, m.answers, m.commits, m.swept, m.sweeps, m.last)
	into.Gauge("fencegate_s3_connections", "Connections open on the S3 port.", func() int64 { return stats().Connections })
	into.Gauge("fencegate_s3_requests_in_progress", "Requests at work on the S3 port.", func() int64 { return stats().Requests })
	into.Gauge("fencegate_s3_uploads_in_progress", "Uploads and copies of objects and parts under way on the S3 port.", func() int64 { return stats().Uploads })
	into.Count("fencegate_s3_received_bytes_total", "Bytes that came on the S3 port, TLS and headers included.", func() int64 { return stats().BytesIn })
	into.Count("fencegate_s3_sent_bytes_total", "Bytes that went out on the S3 port, TLS and headers included.", func() int64 { return stats().BytesOut })
}
