package main

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/internal/certs"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestATokenThatNoHeaderMayHoldIsRefusedWithoutBeingShown(t *testing.T) {
	t.Parallel()
	for _, token := range []string{"geheim\nX-Other: 1", "geheim\r", "ge\x00heim", "\x7fgeheim"} {
		code, _, stderr := cli(t, map[string]string{"FENCEGATE_TOKEN": token}, "resources", "show", "r", "--gateway", "http://127.0.0.1:1")
		if code != exitUsage || !strings.Contains(stderr, "FENCEGATE_TOKEN") || strings.Contains(stderr, "heim") {
			t.Errorf("%q: %d %q", token, code, stderr)
		}
	}
}

// pki is a CA, and its certificate as a file.
type pki struct {
	certs.Pair

	dir, ca string
}

func newPKI(t *testing.T) *pki {
	t.Helper()
	p := &pki{Pair: certs.New(certs.Authority("authority")), dir: t.TempDir()}
	p.ca = filepath.Join(p.dir, "ca.crt")
	certs.Replace(t, p.ca, p.Cert)
	return p
}

func (p *pki) leaf(t *testing.T, name string) (cert, key string) {
	t.Helper()
	return p.Sign(certs.For(name+".example", "127.0.0.1")).Files(t)
}

// A real gateway and the command's own client: the handshake completes after the server has accepted the connection.
func TestACommandIsKnownByItsCertificate(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
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
	startServe(t, pg, append(serveArgs, "--api-tls-client-ca", p.ca)...)
	for name, want := range map[string]struct {
		code int
		says string
	}{"ops": {exitOK, ""}, "stranger": {exitUnavailable, "bearer token"}} {
		cert, key := p.leaf(t, name)
		code, _, stderr := cli(t, nil, "resources", "ls", "--gateway", "https://"+addr, "--ca", p.ca, "--cert", cert, "--key", key)
		if (code == exitOK) != (want.code == exitOK) || !strings.Contains(stderr, want.says) {
			t.Errorf("%s: %d %s", name, code, stderr)
		}
	}
}

// One gateway accepts clients with a certificate and clients with a token.
func TestWhereCertificatesAreOptionalATokenIsEnough(t *testing.T) {
	t.Parallel()
	p := newPKI(t)
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
		"--api-tls-client-ca", p.ca, "--api-tls-client-optional")
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
		code, _, stderr := cli(t, nil, append([]string{"resources", "ls", "--gateway", "https://" + addr, "--ca", p.ca}, c.args...)...)
		if (code == exitOK) != (c.says == "") || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: %d %s", name, code, stderr)
		}
	}
}

// Commands trust the CA of --ca, present the certificate of --cert, and report what is wrong with either.
func TestCommandsReachAGatewayByTLS(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		if len(r.TLS.PeerCertificates) != 1 {
			t.Error("no certificate was shown")
		}
	}))
	own := certs.New(certs.For("127.0.0.1"))
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{own.TLS}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	ca, keyFile := own.Files(t)
	bad := filepath.Join(filepath.Dir(ca), "bad")
	writeFile(t, bad, "-----BEGIN JUNK-----\neA==\n-----END JUNK-----\n")
	for name, c := range map[string]struct {
		args []string
		vars map[string]string
		code int
		says string
	}{
		"all":               {[]string{"--ca", ca, "--cert", ca, "--key", keyFile}, nil, exitOK, ""},
		"environment":       {nil, map[string]string{"FENCEGATE_CA": ca, "FENCEGATE_CERT": ca, "FENCEGATE_KEY": keyFile}, exitOK, ""},
		"unknown authority": {nil, nil, exitUnavailable, "hint: name the file with the authority of the gateway's certificate with --ca"},
		"another's name":    {[]string{"--ca", ca, "--gateway", strings.Replace(srv.URL, "127.0.0.1", "localhost", 1)}, nil, exitUnavailable, "hint: name the gateway at --gateway or FENCEGATE_GATEWAY as"},
		"no such file":      {[]string{"--ca", ca + "/none"}, nil, exitUsage, "--ca: "},
		"no certificate":    {[]string{"--ca", bad}, nil, exitUsage, "holds no certificate"},
		"no key":            {[]string{"--cert", ca}, nil, exitUsage, "needed together"},
		"another's key":     {[]string{"--cert", ca, "--key", bad}, nil, exitUsage, "--cert and --key: "},
		"without TLS":       {[]string{"--ca", ca, "--gateway", "http://127.0.0.1:1"}, nil, exitUsage, "https://"},
	} {
		code, _, stderr := cli(t, c.vars, append([]string{"activity", "--follow=false", "--gateway", srv.URL}, c.args...)...)
		if code != c.code || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: %d %q", name, code, stderr)
		}
	}
}
