//go:build unix

package gateway

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/internal/certs"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// ending makes a certificate that ends then, in a file with its key.
func ending(t *testing.T, then time.Time) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "pem")
	certs.New(&x509.Certificate{NotBefore: then.Add(-365 * 24 * time.Hour), NotAfter: then}).Write(t, file, file)
	return file
}

// A gateway that runs for long warns once a day of a certificate that ends within two weeks.
func TestARunningGatewayWarnsOfACertificateThatEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file := ending(t, time.Now().Add(16*24*time.Hour))
		var log bytes.Buffer
		cfg := Config{PGTLSCert: file, PGTLSKey: file, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, cancel := context.WithTimeout(t.Context(), 4*24*time.Hour+time.Hour)
		defer cancel()
		if err := warnOfCertificates(ctx, cfg); err != nil {
			t.Fatal(err)
		}
		if said := log.String(); strings.Count(said, "level=WARN") != 3 || !strings.Contains(said, "the PostgreSQL port: certificate "+file+" expires on 2000-01-17") {
			t.Errorf("not on days 2, 3 and 4 alone:\n%s", said)
		}
	})
}

// The file may have become a pipe since the start. The look, which a stop waits for, ends.
func TestTheLookAtCertificatesReadsNoPipe(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{PGTLSCert: pipe, PGTLSKey: pipe, PGTLSClientCA: pipe, Logger: slog.New(slog.DiscardHandler)}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	ended := make(chan error, 1)
	go func() { ended <- warnOfCertificates(ctx, cfg) }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it reads the pipe")
	}
}

// A gateway warns at its start. Each port with TLS has a series.
func TestTheEndOfACertificateIsLoggedAndAMetric(t *testing.T) {
	t.Parallel()
	ends := time.Now().Add(24 * time.Hour).Truncate(time.Second)
	file := ending(t, ends)
	const nowhere = "127.0.0.1:1"
	log := new(lines)
	g, err := New(Config{
		PostgresURL: "postgres://gateway@" + nowhere + "/none", RedisNodes: []lock.Node{{Addr: nowhere}}, KeyPrefix: "none", MasterKey: "k1:" + strings.Repeat("5a", 32),
		APIListen: "127.0.0.1:0", PGListen: "127.0.0.1:0", APITLSCert: file, APITLSKey: file, Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Stop() }()
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the warning is logged", func() bool { return strings.Contains(log.String(), "the HTTP API: certificate "+file+" expires on ") })
	answer := httptest.NewRecorder()
	g.registry.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	var series []string
	for line := range strings.Lines(answer.Body.String()) {
		if strings.HasPrefix(line, "fencegate_tls_") {
			series = append(series, strings.TrimSpace(line))
		}
	}
	want := fmt.Sprintf(`fencegate_tls_certificate_not_after_timestamp_seconds{port="api"} %v`, float64(ends.Unix()))
	if len(series) != 1 || series[0] != want {
		t.Errorf("%q, want %q", series, want)
	}
}
