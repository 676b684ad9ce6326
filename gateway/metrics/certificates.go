package metrics

import (
	"crypto/tls"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencegate/fencegate/internal/tlsfiles"
)

// certificateEnds has a series for each port with TLS.
type certificateEnds struct {
	desc  *prometheus.Desc
	ports map[string]*tls.Config
}

// NewCertificateEnds returns the collector of the ends of the ports' certificates; nil: a port without TLS.
func NewCertificateEnds(ports map[string]*tls.Config) prometheus.Collector {
	return certificateEnds{
		desc: prometheus.NewDesc("fencegate_tls_certificate_not_after_timestamp_seconds",
			"Unix time at which the first certificate ends of the chain that a port offers, by port: api, pg or s3. Ports without TLS have none.", []string{"port"}, nil),
		ports: ports,
	}
}

// Describe implements [prometheus.Collector].
func (c certificateEnds) Describe(to chan<- *prometheus.Desc) { to <- c.desc }

// Collect implements [prometheus.Collector].
func (c certificateEnds) Collect(to chan<- prometheus.Metric) {
	for port, cfg := range c.ports {
		if cfg != nil {
			to <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(tlsfiles.NotAfter(cfg).Unix()), port)
		}
	}
}
