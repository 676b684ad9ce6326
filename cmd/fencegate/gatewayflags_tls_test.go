package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Commands trust the CA of --ca, present the certificate of --cert, and report what is wrong with either.
func TestCommandsReachAGatewayByTLS(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		if len(r.TLS.PeerCertificates) != 1 {
			t.Error("no certificate was shown")
		}
	}))
	srv.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	key, err := x509.MarshalPKCS8PrivateKey(srv.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	ca, keyFile := write("ca", "CERTIFICATE", srv.Certificate().Raw), write("key", "PRIVATE KEY", key)
	bad := write("bad", "JUNK", []byte("x"))
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
		"no such file":      {[]string{"--ca", dir + "/none"}, nil, exitUsage, "--ca: "},
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
