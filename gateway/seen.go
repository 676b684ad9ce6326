package gateway

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/wire"
)

// seen holds what people can see of a gateway: the latest events, and a count of the fence's refusals.
type seen struct {
	*activity.Feed

	refusals *prometheus.CounterVec
}

func newSeen(log *slog.Logger) *seen {
	s := &seen{refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "fencegate_refusals_total",
		Help: "Writes, and logins with a grant or lease, that the fence refused, by surface (pg, sql, check or s3) and SQLSTATE. fence.protected also counts refusals that bypass the gateway.",
	}, []string{"surface", "code"})}
	for _, surface := range []string{wire.SurfacePG, wire.SurfaceSQL, wire.SurfaceCheck, wire.SurfaceS3} {
		for _, code := range fence.Codes { // the series exists before the first refusal, so that a rate includes it
			s.refusals.WithLabelValues(surface, code.SQLState)
		}
	}
	s.Feed = activity.New(activity.Config{
		Logger: log, Refused: func(surface, code string) { s.refusals.WithLabelValues(surface, code).Inc() },
	})
	return s
}
