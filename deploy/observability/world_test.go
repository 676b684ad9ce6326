//go:build observability && unix

package observability_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/certs"
	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/internal/stack/stacktest"
)

// world is a gateway with all ports on the test's own services, and the Prometheus that scrapes it.
type world struct {
	*stack.Stack

	t     *testing.T
	pg    *stack.Postgres
	nodes stack.Redis
	g     *gateway.Gateway
	api   *client.Client
	http  *http.Client
	prom  string // base URL
}

func setup(t *testing.T) *world {
	t.Helper()
	w := &world{Stack: stacktest.New(t), t: t, http: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(w.http.CloseIdleConnections)
	w.pg = stacktest.Postgres(t, w.Stack, stack.PostgresConfig{Database: stack.Database{Then: []string{
		"CREATE TABLE orders (id int PRIMARY KEY, status text)", "INSERT INTO orders VALUES (1, 'new')",
		"GRANT SELECT, UPDATE ON orders TO fence_writer", "SELECT fence.protect('orders', resource => 'orders/1')",
		"CREATE TABLE stock (id int)", "SELECT fence.protect('stock', resource => 'stock')", "ALTER TABLE stock DISABLE TRIGGER fence_guard",
	}}})
	var err error
	if w.nodes, err = w.Redis(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	ofOneDay, certificate := certs.For("127.0.0.1"), filepath.Join(w.Dir, "pem")
	ofOneDay.NotAfter = time.Now().Add(24 * time.Hour)
	certs.New(ofOneDay).Write(t, certificate, certificate)
	w.g, err = w.InProcess(t.Context(), gateway.Config{
		PostgresURL: w.pg.As(stack.Gateway), SQLURL: w.pg.As(stack.SQL), RedisNodes: w.nodes.Nodes(), MaxTTL: time.Minute,
		PGListen: "127.0.0.1:0", S3Listen: "127.0.0.1:0", MetricsListen: "127.0.0.1:0",
		PGTLSCert: certificate, PGTLSKey: certificate, Version: "test", Logger: slog.New(slog.DiscardHandler), DrainTimeout: time.Second,
		NodeTimeout: 2 * time.Second, // the machine may be busy with other tests
	})
	if err != nil {
		t.Fatal(err)
	}
	if w.api, err = client.New(client.Config{URL: "http://" + w.g.Addrs().API, HTTPClient: w.http}); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) stop() {
	if err := w.g.Stop(); err != nil {
		w.t.Errorf("stop: %v", err)
	}
}

func (w *world) acquire(resource string) client.Lease {
	w.t.Helper()
	l, err := w.api.Acquire(w.t.Context(), client.AcquireRequest{Resource: resource, TTL: time.Minute, Wait: 20 * time.Second})
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

// login opens a session on the PostgreSQL port with these options.
func (w *world) login(options string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(strings.Replace(w.pg.As(stack.Writer), w.pg.Addr(), w.g.Addrs().PG, 1))
	if err != nil {
		w.t.Fatal(err)
	}
	cfg.RuntimeParams["options"] = options
	return pgx.ConnectConfig(w.t.Context(), cfg)
}

// prometheus starts a real Prometheus, with this folder's configuration and rules, changed by sooner.
func (w *world) prometheus() {
	t := w.t
	t.Helper()
	for _, file := range []string{"prometheus.yml", "alerts.yml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sooner {
			text = regexp.MustCompile(s.pattern).ReplaceAll(text, []byte(s.with))
		}
		text = []byte(strings.Replace(string(text), `"gateway:9464"`, `"`+w.g.Addrs().Metrics+`"`, 1))
		if err := os.WriteFile(filepath.Join(w.Dir, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	addr, err := stack.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	path, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatal("no prometheus: scripts/need prometheus")
	}
	w.prom = "http://" + addr
	_, err = w.Run(t.Context(), "prometheus", child.Spec{Path: path, Args: []string{
		"--config.file=" + filepath.Join(w.Dir, "prometheus.yml"), "--storage.tsdb.path=" + filepath.Join(w.Dir, "prometheus", "data"),
		"--web.listen-address=" + addr, "--log.level=warn",
	}}, func(context.Context) error { return w.get("/-/ready", nil) })
	if err != nil {
		t.Fatal(err)
	}
}

// until polls, at most for within.
func (w *world) until(within time.Duration, what string, yes func() bool) {
	w.t.Helper()
	over := time.After(within)
	for !yes() {
		select {
		case <-over:
			w.t.Fatalf("after %v it is not so that %s", within, what)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// get queries Prometheus.
func (w *world) get(path string, into any) error {
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.prom+path, nil)
	if err != nil {
		return err
	}
	res, err := w.http.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return err
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("%d: %s", res.StatusCode, text)
	case into == nil:
		return nil
	}
	return json.Unmarshal(text, into)
}
