package metrics

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencegate/fencegate/fence"
)

// The outcomes of arming, as label values.
const (
	armArmed     = "armed"
	armNotRaised = "not_raised"
	armUndrained = "undrained"
	armUnknown   = "unknown"
	armFailed    = "failed"
)

// Arms counts the outcomes of the fences that this gateway raises.
type Arms struct {
	arms         *prometheus.CounterVec
	took, drains prometheus.Histogram
	ended        prometheus.Counter
	retired      prometheus.Counter
}

// NewArms returns the metrics of a gateway that has raised no fence yet.
func NewArms() *Arms {
	buckets := []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	m := &Arms{
		arms: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fencegate_arms_total", Help: "Fences that this gateway was asked to raise for leases, by outcome: armed, not_raised (another was faster), undrained, unknown or failed. Leases from PostgreSQL count as armed alone.",
		}, []string{"outcome"}),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fencegate_arm_seconds", Buckets: buckets,
			Help: "Time to raise the fences of one acquisition and to drain older writers; with leases from PostgreSQL it is part of the wait.",
		}),
		drains: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fencegate_drain_seconds", Buckets: buckets,
			Help: "Time that arming waited for writers of older grants, if there may have been some. Arms of several resources at once are not in it.",
		}),
		ended: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fencegate_drain_ended_sessions_total", Help: "Sessions in PostgreSQL that arming ended, because their transaction under an older grant outlasted the grace.",
		}),
		retired: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fencegate_fences_retired_total", Help: "Fences that this gateway retired, because they were unused for --retire-after.",
		}),
	}
	for _, outcome := range []string{armArmed, armNotRaised, armUndrained, armUnknown, armFailed} {
		m.arms.WithLabelValues(outcome)
	}
	return m
}

// Register adds the metrics.
func (m *Arms) Register(into *Registry) {
	into.MustRegister(m.arms, m.took, m.drains, m.ended, m.retired)
}

// Drained counts a wait for writers of older grants, and the sessions that it ended.
func (m *Arms) Drained(took time.Duration, sessions int) {
	m.drains.Observe(took.Seconds())
	m.ended.Add(float64(sessions))
}

// Armed counts an arming of some fences.
func (m *Arms) Armed(fences int, took time.Duration, err error) {
	m.took.Observe(took.Seconds())
	m.arms.WithLabelValues(armOutcome(err)).Add(float64(fences))
}

// Granted counts a fence that PostgreSQL raised while it granted a lease.
func (m *Arms) Granted() { m.arms.WithLabelValues(armArmed).Inc() }

// Retired counts fences that retired.
func (m *Arms) Retired(fences int) { m.retired.Add(float64(fences)) }

func armOutcome(err error) string {
	switch {
	case err == nil:
		return armArmed
	case errors.Is(err, fence.ErrUnknown):
		return armUnknown
	case errors.Is(err, fence.ErrUndrained):
		return armUndrained
	case errors.Is(err, fence.ErrNotRaised):
		return armNotRaised
	}
	return armFailed
}
