package doctor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// A certificate is warned of before clients refuse it.
func TestACertificateThatEndsIsFound(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ends := time.Now().Add(3 * 24 * time.Hour).Truncate(time.Second)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: ends.Add(-365 * 24 * time.Hour), NotAfter: ends,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"status": "ready"}`)) }))
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, MinVersion: tls.VersionTLS12}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	known := x509.NewCertPool()
	known.AddCert(srv.Certificate())
	found := Examine(t.Context(), Config{GatewayURL: srv.URL, GatewayTLS: &tls.Config{RootCAs: known, MinVersion: tls.VersionTLS12}})
	want(t, found, "gateway.certificate", Warn, srv.URL, "expires on "+ends.UTC().Format(time.RFC3339), "--api-tls-cert")
}
