// Package tlsfiles loads a port's TLS configuration from PEM files, and follows them: replaced files apply from the
// next handshake on, without a restart, and unusable files change nothing.
//
//	cfg, err := tlsfiles.Files{Cert: "tls.crt", Key: "tls.key"}.Load(tlsfiles.Use{Port: "the S3 port"}, logger)
//	ln = tlsfiles.Listener(ln, cfg)
package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/fencegate/fencegate/internal/regular"
)

// Files are the PEM files of a server's TLS.
type Files struct {
	// Cert and Key hold the certificate chain and its key. Required.
	Cert, Key string
	// ClientCA holds the CAs of clients' certificates. Defaults to "": no certificate is requested.
	ClientCA string
}

// Use is what the TLS is for.
type Use struct {
	Port       string             // its name in the log
	NextProtos []string           // for ALPN; nil: none
	ClientAuth tls.ClientAuthType // with a ClientCA; NoClientCert stands for RequireAndVerifyClientCert
}

// Load returns a configuration that follows the files: a replaced one applies from the next handshake on. While new
// files are unusable, the last good ones stay, and log gets the reason.
func (f Files) Load(use Use, log *slog.Logger) (*tls.Config, error) {
	follower := &follower{files: f, use: use, log: log}
	seen, err := f.stat()
	if err != nil {
		return nil, err
	}
	if follower.current, err = f.read(use); err != nil {
		return nil, err
	}
	follower.state = seen
	cfg := follower.current.Clone()
	cfg.Certificates = nil
	cfg.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &follower.config().Certificates[0], nil }
	cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return follower.config(), nil }
	return cfg, nil
}

func (f Files) read(use Use) (*tls.Config, error) {
	pair, err := Pair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", f.Cert, f.Key, err)
	}
	cfg := &tls.Config{
		Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: use.NextProtos,
		SessionTicketsDisabled: true, // a resumed session would outlive the files with which it began
	}
	if f.ClientCA == "" {
		return cfg, nil
	}
	pem, err := regular.Read(f.ClientCA, regular.MaxBytes)
	if err != nil {
		return nil, err
	}
	cfg.ClientCAs = x509.NewCertPool()
	if !cfg.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("client authorities %s: no certificate in it", f.ClientCA)
	}
	if cfg.ClientAuth = use.ClientAuth; cfg.ClientAuth == tls.NoClientCert {
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return cfg, nil
}

// fileState identifies a file's content.
type fileState struct {
	changed time.Time
	size    int64
	file    os.FileInfo // for os.SameFile: a file may be replaced by one of the same age
}

func (f Files) stat() (states [3]fileState, err error) {
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

// follower holds the configuration for the current files.
type follower struct {
	files Files
	use   Use
	log   *slog.Logger

	mu      sync.Mutex
	current *tls.Config
	state   [3]fileState // the files from which current was read
	failure string       // the last one logged
}

// config checks the files first.
func (f *follower) config() *tls.Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen, err := f.files.stat()
	if err == nil && sameFiles(seen, f.state) {
		f.failure = ""
		return f.current
	}
	var fresh *tls.Config
	if err == nil {
		fresh, err = f.files.read(f.use)
	}
	switch {
	case err == nil:
		f.current, f.state, f.failure = fresh, seen, ""
		f.log.Info(f.use.Port+" offers the new certificate", "file", f.files.Cert)
		for _, warning := range f.files.Warnings(time.Now()) {
			f.log.Warn(f.use.Port + ": " + warning)
		}
	case err.Error() != f.failure: // logged once; the files are tried again at each handshake
		f.failure = err.Error()
		f.log.Error(f.use.Port+" stays with its old certificate: the new files can't be used", "error", err)
	}
	return f.current
}
