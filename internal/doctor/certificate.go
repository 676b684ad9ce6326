package doctor

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"time"

	"github.com/fencegate/fencegate/internal/tlsfiles"
)

// checkAging warns of certificates that end: the one that a server showed on a connection, and the one that cfg offers to
// it. cfg may be nil.
func checkAging(check, server string, conn net.Conn, cfg *tls.Config) (found []Finding) {
	encrypted, ok := conn.(*tls.Conn)
	if !ok {
		return nil
	}
	now := time.Now()
	if said := tlsfiles.Aging(encrypted.ConnectionState().PeerCertificates, now); said != "" {
		found = append(found, warn(check, "the certificate of "+server+" "+said, "Renew the server's certificate, and let the server read it."))
	}
	if said := tlsfiles.Aging(offered(cfg), now); said != "" {
		found = append(found, warn(check, "the certificate that is shown to "+server+" "+said, "Renew the client's certificate, here and at the gateway."))
	}
	return found
}

// offered returns the chain that a client's configuration offers to servers.
func offered(cfg *tls.Config) (chain []*x509.Certificate) {
	if cfg == nil {
		return nil
	}
	var own tls.Certificate
	switch {
	case cfg.GetClientCertificate != nil:
		if now, err := cfg.GetClientCertificate(new(tls.CertificateRequestInfo)); err == nil {
			own = *now
		}
	case len(cfg.Certificates) > 0:
		own = cfg.Certificates[0]
	}
	for _, der := range own.Certificate {
		if c, err := x509.ParseCertificate(der); err == nil {
			chain = append(chain, c)
		}
	}
	return chain
}
