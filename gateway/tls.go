package gateway

import (
	"cmp"
	"crypto/tls"
	"log/slog"

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
