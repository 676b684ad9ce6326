package pgwire

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"
)

// Why SCRAM with channel binding cannot pass this relay.
var (
	errBindingOverPlain = errors.New("the gateway uses TLS to PostgreSQL, but offers clients none: with SCRAM, PostgreSQL then offers SCRAM-SHA-256-PLUS, " +
		"which libpq refuses over a plain connection; offer clients TLS with PostgreSQL's own certificate, or connect to PostgreSQL without TLS")
	errTwoCertificates = errors.New("the gateway's certificate is not PostgreSQL's own: with SCRAM, channel binding fails, " +
		"so clients must connect with channel_binding=disable; or offer them PostgreSQL's own certificate and key")
)

// loginRefusal identifies the error with which PostgreSQL refused a login; its text may be in any language.
type loginRefusal struct{ code, file string }

// scramSource is the source file of PostgreSQL's SCRAM exchange, which compares channel bindings.
const scramSource = "auth-scram.c"

// authentication finds out why logins fail, or prove nothing, that would be right without a relay.
type authentication struct {
	clientTLS *tls.Config // nil: no TLS
	encrypts  bool        // the connections to PostgreSQL
	upstreams *upstreams
	log       *slog.Logger
	once      sync.Once
}

// checkChannelBinding is [Server.CheckChannelBinding].
func (a *authentication) checkChannelBinding(ctx context.Context) error {
	switch {
	case !a.encrypts && a.clientTLS != nil:
		a.log.Info("clients with channel_binding=require can't log in: the gateway connects to PostgreSQL without TLS, so there is no channel binding")
		return nil
	case !a.encrypts:
		return nil
	case a.clientTLS == nil:
		return errBindingOverPlain
	}
	conn, _, err := a.upstreams.dial(ctx)
	if err != nil {
		return nil //nolint:nilerr // that PostgreSQL is away is for others to report
	}
	defer func() { _ = conn.Close() }()
	secure, ok := conn.(*tls.Conn)
	if !ok {
		return errors.New("the connection to PostgreSQL is not encrypted")
	}
	return a.compareCertificates(secure)
}

func (a *authentication) compareCertificates(secure *tls.Conn) error {
	own, err := a.certificate()
	if err != nil {
		return err
	}
	if theirs := secure.ConnectionState().PeerCertificates; len(theirs) == 0 || !bytes.Equal(own, theirs[0].Raw) {
		return errTwoCertificates
	}
	return nil
}

// warnUnproved logs, once, that PostgreSQL did not ask a client for a proof: pg_hba.conf matches connections, and all
// clients of a relay share the relay's address.
func (a *authentication) warnUnproved(log *slog.Logger) {
	a.once.Do(func() {
		log.Warn("PostgreSQL accepted a client of the gateway without authentication: " +
			"if pg_hba.conf has trust, peer or ident for connections from the gateway, everybody who reaches the gateway's port can log in")
	})
}

// Why PostgreSQL refuses, with 28000, logins that would work without a relay.
var errClientCertificate = errors.New("PostgreSQL asks for clients' certificates, and they can't pass a relay: " +
	"where pg_hba.conf has the method cert or the option clientcert, give connections from the gateway another method, " +
	"and let the gateway ask for the certificates")

// explain logs why a login that PostgreSQL refused could not have succeeded, if the relay itself is the reason.
func (a *authentication) explain(refusal loginRefusal, client *client, upstream net.Conn) {
	if refusal.code != codeInvalidAuthorization {
		return
	}
	var why error
	_, encrypted := client.conn.(*tls.Conn)
	secure, encryptedUpstream := upstream.(*tls.Conn)
	switch {
	case refusal.file != scramSource && a.upstreams.askedForCertificate.Load():
		why = errClientCertificate
	case refusal.file == scramSource && encrypted && encryptedUpstream:
		why = a.compareCertificates(secure)
	}
	if why != nil {
		a.log.Warn("PostgreSQL refused a login", "client", client.address(), "sqlstate", refusal.code, "possibly", why)
	}
}

// certificate returns the certificate that clients see, in DER.
func (a *authentication) certificate() ([]byte, error) {
	cert := new(tls.Certificate)
	switch {
	case a.clientTLS.GetCertificate != nil:
		var err error
		if cert, err = a.clientTLS.GetCertificate(&tls.ClientHelloInfo{}); err != nil {
			return nil, err
		}
	case len(a.clientTLS.Certificates) > 0:
		cert = &a.clientTLS.Certificates[0]
	}
	if len(cert.Certificate) == 0 {
		return nil, errors.New("there is no certificate for clients")
	}
	return cert.Certificate[0], nil
}
