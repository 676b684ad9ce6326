package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/wire"
)

// Refusals counts the fence's refusals.
type Refusals struct{ *prometheus.CounterVec }

// NewRefusals returns a count of none.
func NewRefusals() Refusals {
	r := Refusals{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fencegate_refusals_total",
		Help: "Writes, and logins with a grant or lease, that the fence refused, by surface (pg, sql, check or s3) and SQLSTATE. fence.protected also counts refusals that bypass the gateway.",
	}, []string{"surface", "code"})}
	for _, surface := range []string{wire.SurfacePG, wire.SurfaceSQL, wire.SurfaceCheck, wire.SurfaceS3} {
		for _, code := range fence.Codes { // the series exists before the first refusal, so that a rate includes it
			r.WithLabelValues(surface, code.SQLState)
		}
	}
	return r
}

// Count counts a refusal.
func (r Refusals) Count(surface, code string) { r.WithLabelValues(surface, code).Inc() }
