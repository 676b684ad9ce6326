package doctor

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/certs"
)

// A certificate is warned of before clients refuse it.
func TestACertificateThatEndsIsFound(t *testing.T) {
	t.Parallel()
	ends := time.Now().Add(3 * 24 * time.Hour).Truncate(time.Second)
	of := certs.For("127.0.0.1")
	of.NotBefore, of.NotAfter = ends.Add(-365*24*time.Hour), ends
	own := certs.New(of)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"status": "ready"}`)) }))
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{own.TLS}, MinVersion: tls.VersionTLS12}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	found := Examine(t.Context(), Config{GatewayURL: srv.URL, GatewayTLS: &tls.Config{RootCAs: own.Pool(), MinVersion: tls.VersionTLS12}})
	want(t, found, "gateway.certificate", Warn, srv.URL, "expires on "+ends.UTC().Format(time.RFC3339), "--api-tls-cert")
}
