//go:build observability && unix

package observability_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// world is a gateway with all ports on the test's own services, and the Prometheus that scrapes it.
type world struct {
	t     *testing.T
	pg    testenv.PG
	nodes []*redisserver.Server
	g     *gateway.Gateway
	api   *client.Client
	http  *http.Client
	prom  string // base URL
}

func setup(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, pg: testenv.Postgres(t), nodes: testenv.OwnRedis(t, 3), http: &http.Client{Transport: &http.Transport{}}}
	t.Cleanup(w.http.CloseIdleConnections)
	for _, sql := range []string{
		"CREATE TABLE orders (id int PRIMARY KEY, status text)", "INSERT INTO orders VALUES (1, 'new')",
		"GRANT SELECT, UPDATE ON orders TO fence_writer", "SELECT fence.protect('orders', resource => 'orders/1')",
		"CREATE TABLE stock (id int)", "SELECT fence.protect('stock', resource => 'stock')", "ALTER TABLE stock DISABLE TRIGGER fence_guard",
	} {
		w.sql(sql)
	}
	certificate := ofOneDay(t)
	cfg := gateway.Config{
		PostgresURL: w.pg.GatewayURL, SQLURL: w.pg.WriterURL, InitNodes: true, MasterKey: "k1:" + strings.Repeat("5a", 32), MaxTTL: time.Minute,
		APIListen: "127.0.0.1:0", PGListen: "127.0.0.1:0", S3Listen: "127.0.0.1:0", MetricsListen: "127.0.0.1:0", BlobDir: t.TempDir(),
		PGTLSCert: certificate, PGTLSKey: certificate, Version: "test", Logger: slog.New(slog.DiscardHandler), DrainTimeout: time.Second,
		NodeTimeout: 2 * time.Second, // the machine may be busy with other tests
	}
	for _, n := range w.nodes {
		cfg.RedisNodes = append(cfg.RedisNodes, lock.Node{Addr: n.Addr})
	}
	var err error
	if w.g, err = gateway.New(cfg); err != nil {
		t.Fatal(err)
	}
	if err = w.g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.stop)
	if w.api, err = client.New(client.Config{URL: "http://" + w.g.Addrs().API, HTTPClient: w.http}); err != nil {
		t.Fatal(err)
	}
	return w
}

// ofOneDay makes a certificate, and its key in the same file.
func ofOneDay(t *testing.T) (file string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "pem")
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})...)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func (w *world) stop() {
	if err := w.g.Stop(); err != nil {
		w.t.Errorf("stop: %v", err)
	}
}

func (w *world) sql(sql string) {
	w.t.Helper()
	if _, err := w.pg.Pool(w.t).Exec(w.t.Context(), sql); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
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
	cfg, err := pgx.ParseConfig(w.pg.WriterURL)
	if err != nil {
		w.t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(w.g.Addrs().PG)
	number, _ := strconv.ParseUint(port, 10, 16)
	cfg.Host, cfg.Port, cfg.RuntimeParams["options"] = host, uint16(number), options
	return pgx.ConnectConfig(w.t.Context(), cfg)
}

// prometheus starts a real Prometheus, with this folder's configuration and rules, changed by sooner.
func (w *world) prometheus() {
	t := w.t
	t.Helper()
	dir := t.TempDir()
	for _, file := range []string{"prometheus.yml", "alerts.yml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sooner {
			text = regexp.MustCompile(s.pattern).ReplaceAll(text, []byte(s.with))
		}
		text = []byte(strings.Replace(string(text), `"gateway:9464"`, `"`+w.g.Addrs().Metrics+`"`, 1))
		if err := os.WriteFile(filepath.Join(dir, file), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	port, err := child.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	path, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatal("no prometheus: scripts/need prometheus")
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := child.Start(child.Spec{Path: path, Log: log, Dir: dir, Args: []string{
		"--config.file=" + filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path=" + filepath.Join(dir, "data"),
		fmt.Sprintf("--web.listen-address=127.0.0.1:%d", port), "--log.level=warn",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop(10 * time.Second)
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("prometheus: %s", text)
		}
		_ = log.Close()
	})
	w.prom = fmt.Sprintf("http://127.0.0.1:%d", port)
	w.until(20*time.Second, "Prometheus is ready", func() bool { return w.get("/-/ready", nil) == nil })
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
