package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/tlsfiles"
)

// http11 is the protocol of the HTTP ports.
var http11 = []string{"http/1.1"}

// readTLS reads the certificates of the ports, and returns all faults.
func (p *parsed) readTLS(c Config) (all []error) {
	refuse := func(field, reason string) { all = append(all, &fence.InvalidError{Field: field, Reason: reason}) }
	log := cmp.Or(c.Logger, slog.Default())
	ofHTTP := func(port string, auth tls.ClientAuthType) func(tlsfiles.Files) (*tls.Config, error) {
		return func(f tlsfiles.Files) (*tls.Config, error) {
			return f.Load(tlsfiles.Use{Port: port, NextProtos: http11, ClientAuth: auth}, log)
		}
	}
	ofAPI := tls.RequireAndVerifyClientCert
	if c.APITLSClientOptional {
		ofAPI = tls.VerifyClientCertIfGiven
	}
	ofPG := func(f tlsfiles.Files) (*tls.Config, error) { return pgwire.TLSFiles(f).Load(log) }
	for _, port := range []struct {
		field string // of the certificate
		files tlsfiles.Files
		load  func(tlsfiles.Files) (*tls.Config, error)
		into  **tls.Config
		there bool
	}{
		{"APITLSCert", c.apiFiles(), ofHTTP("the HTTP API", ofAPI), &p.apiTLS, true},
		{"PGTLSCert", c.pgFiles(), ofPG, &p.pgTLS, c.PGListen != ""},
		{"S3TLSCert", c.s3Files(), ofHTTP("the S3 port", tls.RequireAndVerifyClientCert), &p.s3TLS, c.S3Listen != ""},
	} {
		switch {
		case port.files.Cert == "" || port.files.Key == "": // the table refuses one without the other
		case !port.there:
			refuse(port.field, "is of a port that is not served")
		default:
			var err error
			if *port.into, err = port.load(port.files); err != nil {
				refuse(port.field, "can't be used with its key and client CA: "+err.Error())
			}
		}
	}
	return all
}

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

// certificatesEvery is how often a gateway looks when its certificates end. New files are examined when they are read.
const certificatesEvery = 24 * time.Hour

// warnOfCertificates logs the warnings, at once and once a day.
func warnOfCertificates(ctx context.Context, cfg Config) error {
	tick := time.NewTicker(certificatesEvery)
	defer tick.Stop()
	for {
		for _, warning := range cfg.CertificateWarnings() {
			cfg.Logger.Warn(warning)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
