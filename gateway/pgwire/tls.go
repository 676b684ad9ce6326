package pgwire

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"

	"github.com/fencegate/fencegate/internal/tlsfiles"
)

// TLSFiles are the PEM files for TLS with clients.
type TLSFiles struct {
	// Cert and Key hold the certificate chain and its key. Required.
	Cert, Key string
	// ClientCA holds the authorities of clients' certificates. With it a client without such a certificate is refused.
	// PostgreSQL still decides which role the client may use. Defaults to "": clients need no certificate.
	ClientCA string
}

// Load returns a configuration that follows the files: a replaced file takes effect with the next handshake. If new
// files cannot be used, the last good ones stay in use, and log says why.
func (f TLSFiles) Load(log *slog.Logger) (*tls.Config, error) {
	return tlsfiles.Files(f).Load(tlsfiles.Use{
		Port: "the PostgreSQL port", NextProtos: []string{alpn},
		ClientAuth: tls.VerifyClientCertIfGiven, // a client without one gets an error in PostgreSQL's protocol
	}, log)
}

// handshakeError is a failed TLS handshake. The client learns hardly anything of the reason.
type handshakeError struct{ cause error }

func (e *handshakeError) Error() string { return e.cause.Error() }

func (e *handshakeError) Unwrap() error { return e.cause }

func isHandshake(err error) bool {
	_, is := errors.AsType[*handshakeError](err)
	return is
}

// isGone reports that a client disconnected, or was too slow; it sent nothing wrong.
func isGone(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Op != "remote error" // a remote error is a TLS alert
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// withoutCertificates returns a configuration that shows PostgreSQL no certificate: the gateway's own would let every
// client log in as the role that it names. asked is called if PostgreSQL requests one.
func withoutCertificates(cfg *tls.Config, asked func()) *tls.Config {
	cfg = cfg.Clone()
	cfg.Certificates = nil
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		asked()
		return new(tls.Certificate), nil
	}
	return cfg
}

// prefixConn returns bytes that were read ahead.
type prefixConn struct {
	net.Conn
	prefix []byte
}

func (c *prefixConn) Read(b []byte) (int, error) {
	if len(c.prefix) > 0 {
		n := copy(b, c.prefix)
		c.prefix = c.prefix[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}
