package pgwire

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
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

// ofSCRAM is the source file of PostgreSQL's SCRAM exchange, which compares channel bindings.
const ofSCRAM = "auth-scram.c"

// CheckChannelBinding reports why clients will not be able to log in by SCRAM with channel binding, which libpq uses
// whenever it can: its proof covers the certificate of the connection, and a relay has two connections. It returns nil
// if that works or needs no TLS, or if PostgreSQL's certificate cannot be read now. If only clients that require
// channel binding fail, it logs that instead.
func (s *Server) CheckChannelBinding(ctx context.Context) error {
	switch {
	case s.cfg.UpstreamTLS == nil && s.cfg.TLS != nil:
		s.log.Info("clients with channel_binding=require can't log in: the gateway connects to PostgreSQL without TLS, so there is no channel binding")
		return nil
	case s.cfg.UpstreamTLS == nil:
		return nil
	case s.cfg.TLS == nil:
		return errBindingOverPlain
	}
	conn, _, err := s.dial(ctx)
	if err != nil {
		return nil //nolint:nilerr // that PostgreSQL is away is for others to report
	}
	defer func() { _ = conn.Close() }()
	secure, ok := conn.(*tls.Conn)
	if !ok {
		return errors.New("the connection to PostgreSQL is not encrypted")
	}
	return s.compareCertificates(secure)
}

func (s *Server) compareCertificates(secure *tls.Conn) error {
	own, err := s.certificate()
	if err != nil {
		return err
	}
	if theirs := secure.ConnectionState().PeerCertificates; len(theirs) == 0 || !bytes.Equal(own, theirs[0].Raw) {
		return errTwoCertificates
	}
	return nil
}

// unproved is logged once: pg_hba.conf matches connections, and all clients of a relay share the relay's address.
const unproved = "PostgreSQL accepted a client of the gateway without authentication: " +
	"if pg_hba.conf has trust, peer or ident for connections from the gateway, everybody who reaches the gateway's port can log in"

// explain logs why a login that PostgreSQL refused could not have succeeded, if the relay itself is the reason.
func (s *session) explain() {
	if s.refusal.code != codeInvalidAuthorization {
		return
	}
	var why error
	_, encrypted := s.client.(*tls.Conn)
	secure, encryptedUpstream := s.upstream.(*tls.Conn)
	switch {
	case s.refusal.file != ofSCRAM && s.srv.askedForCertificate.Load():
		why = errClientCertificate
	case s.refusal.file == ofSCRAM && encrypted && encryptedUpstream:
		why = s.srv.compareCertificates(secure)
	}
	if why != nil {
		s.srv.log.Warn("PostgreSQL refused a login", "client", s.from(), "sqlstate", s.refusal.code, "possibly", why)
	}
}

// certificate returns the certificate that clients see, in DER.
func (s *Server) certificate() ([]byte, error) {
	cert := new(tls.Certificate)
	switch {
	case s.cfg.TLS.GetCertificate != nil:
		var err error
		if cert, err = s.cfg.TLS.GetCertificate(&tls.ClientHelloInfo{}); err != nil {
			return nil, err
		}
	case len(s.cfg.TLS.Certificates) > 0:
		cert = &s.cfg.TLS.Certificates[0]
	}
	if len(cert.Certificate) == 0 {
		return nil, errors.New("there is no certificate for clients")
	}
	return cert.Certificate[0], nil
}
