package pgwire

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// TLSFiles are the PEM files of the TLS that clients are offered.
type TLSFiles struct {
	// Cert and Key hold the certificate chain and its key. Required.
	Cert, Key string
	// ClientCA holds the authorities of clients' certificates. With it a client that
	// shows no certificate of theirs is refused. Whom the client may log in as,
	// PostgreSQL decides as ever. Defaults to "": none is asked for.
	ClientCA string
}

// Load makes a configuration that follows the files: one that is replaced counts
// from the next handshake on. While new files can't be used, the last good ones
// stay, and log hears why.
func (f TLSFiles) Load(log *slog.Logger) (*tls.Config, error) {
	follower := &tlsFollower{files: f, log: log}
	seen, err := f.stat()
	if err != nil {
		return nil, err
	}
	if follower.current, err = f.read(); err != nil {
		return nil, err
	}
	follower.seen = seen
	cfg := follower.current.Clone()
	cfg.Certificates = nil
	cfg.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &follower.config().Certificates[0], nil }
	cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return follower.config(), nil }
	return cfg, nil
}

func (f TLSFiles) read() (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", f.Cert, f.Key, err)
	}
	cfg := &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{alpn},
		SessionTicketsDisabled: true, // a resumed session would outlive the files that it began with
	}
	if f.ClientCA == "" {
		return cfg, nil
	}
	pem, err := os.ReadFile(f.ClientCA)
	if err != nil {
		return nil, err
	}
	cfg.ClientCAs = x509.NewCertPool()
	if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("client authorities %s: no certificate in it", f.ClientCA)
	}
	cfg.ClientAuth = tls.VerifyClientCertIfGiven // who shows none is told so in PostgreSQL's protocol
	return cfg, nil
}

// fileState tells one content of a file from another.
type fileState struct {
	changed time.Time
	size    int64
	file    os.FileInfo // for os.SameFile: a file may be replaced by one of the same age
}

func (f TLSFiles) stat() (states [3]fileState, err error) {
	for i, name := range []string{f.Cert, f.Key, f.ClientCA} {
		if name == "" {
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			return states, err
		}
		states[i] = fileState{info.ModTime(), info.Size(), info}
	}
	return states, nil
}

func sameFiles(a, b [3]fileState) bool {
	for i := range a {
		if a[i].size != b[i].size || !a[i].changed.Equal(b[i].changed) || (a[i].file != nil && !os.SameFile(a[i].file, b[i].file)) {
			return false
		}
	}
	return true
}

// tlsFollower has the configuration of the files as they are.
type tlsFollower struct {
	files TLSFiles
	log   *slog.Logger

	mu      sync.Mutex
	current *tls.Config
	seen    [3]fileState // what current was read from
	failure string       // the last one that the log has heard of
}

// config looks at the files first.
func (f *tlsFollower) config() *tls.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen, err := f.files.stat()
	if err == nil && sameFiles(seen, f.seen) {
		f.failure = ""
		return f.current
	}
	var fresh *tls.Config
	if err == nil {
		fresh, err = f.files.read()
	}
	switch {
	case err == nil:
		f.current, f.seen, f.failure = fresh, seen, ""
		f.log.Info("the PostgreSQL port offers the new certificate", "file", f.files.Cert)
	case err.Error() != f.failure: // once; the files are tried again at each handshake
		f.failure = err.Error()
		f.log.Error("the PostgreSQL port stays with its old certificate: the new files can't be used", "error", err)
	}
	return f.current
}

// errNoCertificate is what a client is told that had to show one.
var errNoCertificate = &fatalError{
	code: codeInvalidAuthorization, message: "connection requires a valid client certificate",
	hint: "Connect with TLS and a certificate of an authority that this gateway knows (sslmode=require, sslcert, sslkey).",
}

// checkCertificate refuses a client that shows no certificate where one is asked
// for: a plain connection, too.
func (s *session) checkCertificate() error {
	if s.srv.cfg.TLS == nil || s.srv.cfg.TLS.ClientAuth == tls.NoClientCert {
		return nil
	}
	if secure, ok := s.client.(*tls.Conn); ok && len(secure.ConnectionState().PeerCertificates) > 0 {
		return nil
	}
	return errNoCertificate
}

// Why PostgreSQL refuses, with 28000, logins that would work without a relay.
var errClientCertificate = errors.New("PostgreSQL asks for clients' certificates, and they can't pass a relay: " +
	"where pg_hba.conf has the method cert or the option clientcert, give connections from the gateway another method, " +
	"and let the gateway ask for the certificates")

// notOurs makes a configuration that shows PostgreSQL no certificate: one of the
// gateway's would let every client in as whom it names. asked is called where
// PostgreSQL wants to see one.
func notOurs(cfg *tls.Config, asked func()) *tls.Config {
	cfg = cfg.Clone()
	cfg.Certificates = nil
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		asked()
		return new(tls.Certificate), nil
	}
	return cfg
}
