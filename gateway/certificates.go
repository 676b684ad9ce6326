package gateway

import (
	"context"
	"crypto/tls"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencegate/fencegate/internal/tlsfiles"
	"github.com/fencegate/fencegate/wire"
)

// certificatesEvery is how often a gateway looks when its certificates end. New files are examined when they are read.
const certificatesEvery = 24 * time.Hour

func (c Config) apiFiles() tlsfiles.Files {
	return tlsfiles.Files{Cert: c.APITLSCert, Key: c.APITLSKey, ClientCA: c.APITLSClientCA}
}

func (c Config) pgFiles() tlsfiles.Files {
	return tlsfiles.Files{Cert: c.PGTLSCert, Key: c.PGTLSKey, ClientCA: c.PGTLSClientCA}
}

func (c Config) s3Files() tlsfiles.Files {
	return tlsfiles.Files{Cert: c.S3TLSCert, Key: c.S3TLSKey, ClientCA: c.S3TLSClientCA}
}

// CertificateWarnings says which certificates of the ports, and authorities of clients' certificates, have expired, are
// not valid yet, or end within 14 days; those of a short life, in the last fifth of it. [Gateway.Start] logs them, and
// so does the running gateway, once a day.
func (c Config) CertificateWarnings() (all []string) {
	now := time.Now()
	for _, port := range []struct {
		name  string
		files tlsfiles.Files
	}{{"the HTTP API", c.apiFiles()}, {"the PostgreSQL port", c.pgFiles()}, {"the S3 port", c.s3Files()}} {
		for _, warning := range port.files.Warnings(now) {
			all = append(all, port.name+": "+warning)
		}
	}
	return all
}

// warnOfCertificates logs the warnings, at once and once a day.
func (g *Gateway) warnOfCertificates(ctx context.Context) error {
	tick := time.NewTicker(certificatesEvery)
	defer tick.Stop()
	for {
		for _, warning := range g.cfg.CertificateWarnings() {
			g.log.Warn(warning)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// certificateEnds has a series for each port with TLS.
type certificateEnds struct {
	desc  *prometheus.Desc
	ports map[string]*tls.Config
}

func newCertificateEnds(p parsed) *certificateEnds {
	return &certificateEnds{
		desc: prometheus.NewDesc("fencegate_tls_certificate_not_after_timestamp_seconds",
			"Unix time at which the first certificate ends of the chain that a port offers, by port: api, pg or s3. Ports without TLS have none.", []string{"port"}, nil),
		ports: map[string]*tls.Config{"api": p.apiTLS, wire.SurfacePG: p.pgTLS, wire.SurfaceS3: p.s3TLS},
	}
}

// Describe implements [prometheus.Collector].
func (c *certificateEnds) Describe(to chan<- *prometheus.Desc) { to <- c.desc }

// Collect implements [prometheus.Collector].
func (c *certificateEnds) Collect(to chan<- prometheus.Metric) {
	for port, cfg := range c.ports {
		if cfg != nil {
			to <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(tlsfiles.NotAfter(cfg).Unix()), port)
		}
	}
}
