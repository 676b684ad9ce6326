// Package certs makes X.509 certificates for tests and benchmarks.
//
//	ca := certs.New(certs.Authority("authority"))
//	server := ca.Sign(certs.For("localhost", "127.0.0.1"))
//	cert, key := server.Files(t)
//	&tls.Config{Certificates: []tls.Certificate{server.TLS}}
//	&tls.Config{RootCAs: ca.Pool()}
package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Pair is a certificate and its key.
type Pair struct {
	Cert, Key []byte // PEM
	TLS       tls.Certificate
}

// Authority is the template of an authority.
func Authority(name string) *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
}

// For is the template of a server and client with these names: host names and IP addresses. The first one is the common
// name, too.
func For(names ...string) *x509.Certificate {
	of := &x509.Certificate{Subject: pkix.Name{CommonName: names[0]}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			of.IPAddresses = append(of.IPAddresses, ip)
		} else {
			of.DNSNames = append(of.DNSNames, name)
		}
	}
	return of
}

// New returns a certificate that signs itself.
func New(of *x509.Certificate) Pair { return Pair{}.Sign(of) }

// Sign returns a certificate that the pair's signs. Without dates it lasts from an hour ago for two hours. It panics if
// the template is malformed.
func (p Pair) Sign(of *x509.Certificate) Pair {
	template := *of
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	if template.NotBefore.IsZero() {
		template.NotBefore = time.Now().Add(-time.Hour)
	}
	own, keyErr := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	secret, secretErr := x509.MarshalPKCS8PrivateKey(own)
	serial, serialErr := rand.Int(rand.Reader, big.NewInt(1<<62))
	template.SerialNumber = serial
	parent, signer := p.TLS.Leaf, p.TLS.PrivateKey
	if parent == nil {
		parent, signer = &template, own
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, parent, own.Public(), signer)
	made := Pair{Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})}
	if err = errors.Join(err, keyErr, secretErr, serialErr); err == nil {
		made.TLS, err = tls.X509KeyPair(made.Cert, made.Key)
	}
	if err != nil {
		panic("certs: " + err.Error())
	}
	return made
}

// Pool trusts the certificate, and those that it signs.
func (p Pair) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(p.TLS.Leaf)
	return pool
}

// Test is the part of testing.TB that writing files needs.
type Test interface {
	Helper()
	TempDir() string
	Fatal(args ...any)
}

// Files writes the certificate and the key into a temporary folder.
func (p Pair) Files(t Test) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	p.Write(t, cert, key)
	return cert, key
}

// Write writes the certificate and the key into two files, or into one with both names.
func (p Pair) Write(t Test, cert, key string) {
	t.Helper()
	if cert == key {
		Replace(t, cert, append(append([]byte(nil), p.Cert...), p.Key...))
		return
	}
	Replace(t, cert, p.Cert)
	Replace(t, key, p.Key)
}

// Replace replaces a file's content as certificate managers do: nobody reads half of it.
func Replace(t Test, file string, content []byte) {
	t.Helper()
	if err := errors.Join(os.WriteFile(file+".new", content, 0o600), os.Rename(file+".new", file)); err != nil {
		t.Fatal(err)
	}
}
