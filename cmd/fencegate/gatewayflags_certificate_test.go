package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
)

// pki creates a CA and certificates with keys, as files.
type pki struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newPKI(t *testing.T) *pki {
	t.Helper()
	p := &pki{dir: t.TempDir(), cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	p.file(t, "ca", p.cert)
	return p
}

// file creates NAME.crt and NAME.key.
func (p *pki) file(t *testing.T, name string, of *x509.Certificate) (cert, key string) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if p.key == nil {
		p.key = own
	}
	der, err := x509.CreateCertificate(rand.Reader, of, p.cert, own.Public(), p.key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(p.dir, name+".crt"), filepath.Join(p.dir, name+".key")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

func (p *pki) leaf(t *testing.T, name string) (cert, key string) {
	t.Helper()
	return p.file(t, name, &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{name + ".example"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	})
}

// A real gateway and the command's own client: the handshake completes after the server has accepted the connection.
func TestACommandIsKnownByItsCertificate(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	ca := filepath.Join(p.dir, "ca.crt")
	serverCert, serverKey := p.leaf(t, "gateway")
	file := filepath.Join(p.dir, "principals")
	writeFile(t, file, "principals:\n  - name: ops\n    certificates: [dns:ops.example]\n    allow: [{resources: orders/*, verbs: inspect}]\n")
	addr, err := redisserver.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	pg := testenv.Postgres(t)
	master := filepath.Join(p.dir, "master")
	writeFile(t, master, "k1:"+strings.Repeat("5a", 32))
	if code, _, stderr := cli(t, nil, "serve", "--postgres-url", pg.GatewayURL, "--lock", "postgres", "--master-key-file", master,
		"--api-listen", addr, "--principals", file); code != exitUsage || !strings.Contains(stderr, "--api-tls-client-ca is missing") {
		t.Errorf("certificates that nobody verifies: %d %s", code, stderr)
	}
	serveArgs := []string{"--api-listen", addr, "--principals", file, "--api-tls-cert", serverCert, "--api-tls-key", serverKey}
	startServe(t, pg, append(serveArgs, "--api-tls-client-ca", ca)...)
	for name, want := range map[string]struct {
		code int
		says string
	}{"ops": {exitOK, ""}, "stranger": {exitUnavailable, "bearer token"}} {
		cert, key := p.leaf(t, name)
		code, _, stderr := cli(t, nil, "resources", "ls", "--gateway", "https://"+addr, "--ca", ca, "--cert", cert, "--key", key)
		if (code == exitOK) != (want.code == exitOK) || !strings.Contains(stderr, want.says) {
			t.Errorf("%s: %d %s", name, code, stderr)
		}
	}
}

// One gateway accepts clients with a certificate and clients with a token.
func TestWhereCertificatesAreOptionalATokenIsEnough(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
	ca := filepath.Join(p.dir, "ca.crt")
	serverCert, serverKey := p.leaf(t, "gateway")
	file, token := filepath.Join(p.dir, "principals"), filepath.Join(p.dir, "token")
	writeFile(t, token, "the token of the worker")
	writeFile(t, file, principalsText("      - {resources: orders/*, verbs: inspect}\n")+
		"  - name: ops\n    certificates: [dns:ops.example]\n    allow: [{resources: orders/*, verbs: inspect}]\n")
	addr, err := redisserver.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	startServe(t, testenv.Postgres(t), "--api-listen", addr, "--principals", file, "--api-tls-cert", serverCert, "--api-tls-key", serverKey,
		"--api-tls-client-ca", ca, "--api-tls-client-optional")
	own, ownKey := p.leaf(t, "ops")
	theirs := newPKI(t)
	other, otherKey := theirs.leaf(t, "ops")
	for name, c := range map[string]struct {
		args []string
		says string // "": accepted
	}{
		"a certificate":                        {[]string{"--cert", own, "--key", ownKey}, ""},
		"a token":                              {[]string{"--token-file", token}, ""},
		"neither":                              {nil, "bearer token is missing or wrong"},
		"of two principals":                    {[]string{"--cert", own, "--key", ownKey, "--token-file", token}, "client certificate another's"},
		"a certificate of another's authority": {[]string{"--cert", other, "--key", otherKey}, "unknown certificate authority"},
	} {
		code, _, stderr := cli(t, nil, append([]string{"resources", "ls", "--gateway", "https://" + addr, "--ca", ca}, c.args...)...)
		if (code == exitOK) != (c.says == "") || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: %d %s", name, code, stderr)
		}
	}
}
