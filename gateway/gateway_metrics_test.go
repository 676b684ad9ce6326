//go:build unix

package gateway_test

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/testenv"
)

// metricsPage returns the type and labels of each metric in docs/reference/metrics.md.
func metricsPage(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "docs", "reference", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `(fencegate_[a-z0-9_]+)` \\| (counter|gauge|histogram) \\|([^|]*)\\| [^|]+ \\|$")
	page := make(map[string]string)
	for _, m := range row.FindAllStringSubmatch(string(text), -1) {
		labels := regexp.MustCompile("`([a-z]+)`").FindAllStringSubmatch(m[3], -1)
		names := make([]string, len(labels))
		for i, label := range labels {
			names[i] = label[1]
		}
		slices.Sort(names)
		page[m[1]] = m[2] + " " + strings.Join(names, ",")
	}
	return page
}

// exposed returns the same from a scrape.
func exposed(text string) map[string]string {
	types, labels := make(map[string]string), make(map[string]map[string]bool)
	sample := regexp.MustCompile(`^([a-z0-9_]+)(?:\{(.*)\})? `)
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, kind, _ := strings.Cut(strings.TrimSpace(rest), " ")
			types[name], labels[name] = kind, make(map[string]bool)
		}
		m := sample.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		name := m[1]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if short := strings.TrimSuffix(name, suffix); types[name] == "" && types[short] != "" {
				name = short
			}
		}
		for _, label := range regexp.MustCompile(`([a-z_]+)="`).FindAllStringSubmatch(m[2], -1) {
			if label[1] != "le" {
				labels[name][label[1]] = true
			}
		}
	}
	all := make(map[string]string)
	for name, kind := range types {
		if strings.HasPrefix(name, "fencegate_") {
			all[name] = kind + " " + strings.Join(slices.Sorted(maps.Keys(labels[name])), ",")
		}
	}
	return all
}

// The page lists every metric and no other. No label contains a resource, a table, a login or a key.
func TestEachMetricIsOnThePageAndNoLabelNamesAResource(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	guarded(t, pg)
	cfg := config(t, pg)
	cfg.MetricsListen, cfg.PG.Rules, cfg.Version = "127.0.0.1:0", grantRequired, "v1.2.3"
	cfg.MetricsPrefixes = []string{"jobs/"}
	c := start(t, cfg)
	l := c.acquire("orders/1001", "30s")
	conn := c.connect(pg, l)
	if _, err := conn.Exec(t.Context(), updateOrder, "by the test"); err != nil {
		t.Fatal(err)
	}
	if err := c.upload(l, "1001/invoice.txt", "text"); err != nil {
		t.Fatal(err)
	}
	creds := c.want(http.StatusOK, "POST", "/v1/leases/credentials", map[string]string{"handle": l.handle})
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.handle})
	if err := c.put(creds, "1001/invoice.txt", "stale"); err == nil {
		t.Error("a stale upload succeeded")
	}
	if _, err := c.login(t.Context(), pg, ""); fatal(err).Code != "ZF002" {
		t.Errorf("without a grant: %v", err)
	}
	sessions, _ := c.want(http.StatusOK, "GET", "/v1/sessions", nil).Body["sessions"].([]any)
	one, _ := sessions[0].(map[string]any)
	id, _ := one["id"].(string)
	c.want(http.StatusNoContent, "POST", "/v1/sessions/"+id+"/end", map[string]string{"by": "ops"})
	testenv.Eventually(t, "the end is counted", func() bool { return c.scraped()[`fencegate_pg_ended_total{sqlstate="57P01"}`] == "1" })

	page := metricsPage(t)
	delete(page, "fencegate_principals_last_reload_successful")           // only with principals: TestARefusedReloadKeepsTheRightsAndIsMeasured
	delete(page, "fencegate_tls_certificate_not_after_timestamp_seconds") // only with TLS: TestTheEndOfACertificateIsLoggedAndAMetric
	var text string
	var there map[string]string
	testenv.Eventually(t, "each metric of the page is there", func() error { // a query may take too long for one scrape
		var status int
		if status, text = c.raw(http.MethodGet, "http://"+c.g.Addrs().Metrics+"/metrics", nil); status != http.StatusOK {
			return fmt.Errorf("%d %s", status, text)
		}
		there = exposed(text)
		for name := range page {
			if there[name] == "" {
				return fmt.Errorf("docs/reference/metrics.md has %s, and the gateway does not", name)
			}
		}
		return nil
	})
	for name, says := range there {
		if page[name] != says {
			t.Errorf("%s is a %q; docs/reference/metrics.md has %q", name, says, page[name])
		}
	}
	for _, secret := range []string{"orders", "1001", "invoice", "fence_writer", "checkout", pg.GatewayURL} {
		for line := range strings.Lines(text) {
			labels := line[:max(0, strings.LastIndexByte(line, '}'))] // a value may have any digits
			if !strings.HasPrefix(line, "#") && strings.Contains(labels, secret) {
				t.Errorf("a label has %q: %s", secret, line)
			}
		}
	}
	testenv.Eventually(t, "the values are right", func() error { // a check may take too long for one scrape
		series := c.scraped()
		for name, want := range map[string]string{
			`fencegate_ready{surface="lease"}`: "1", `fencegate_ready{surface="pg"}`: "1", `fencegate_ready{surface="s3"}`: "1", `fencegate_ready{surface="sql"}`: "1",
			`fencegate_arms_total{outcome="armed"}`: "1", `fencegate_uncovered_tables`: "0", `fencegate_lease_endless_locks`: "0",
			`fencegate_refusals_total{code="ZF001",surface="s3"}`: "1", `fencegate_refusals_total{code="ZF001",surface="sql"}`: "0",
		} {
			if series[name] != want {
				return fmt.Errorf("%s is %q; want %q", name, series[name], want)
			}
		}
		return nil
	})
}

// The metrics listener serves the metrics to every client, and nothing else; the API's own path requires the token.
func TestTheMetricsListenerServesMetricsAlone(t *testing.T) {
	t.Parallel()
	cfg := config(t, testenv.Postgres(t))
	cfg.MetricsListen, cfg.API.BearerToken = "127.0.0.1:0", "secret"
	c := start(t, cfg)
	at := "http://" + c.g.Addrs().Metrics
	for _, call := range []struct {
		method, url string
		want        int
	}{
		{"GET", at + "/metrics", 200},
		{"POST", at + "/metrics", 405},
		{"GET", at + "/", 404},
		{"GET", at + "/v1/resources", 404},
		{"GET", at + "/healthz", 404},
		{"GET", "http://" + c.g.Addrs().API + "/metrics", 401},
	} {
		if status, text := c.raw(call.method, call.url, nil); status != call.want {
			t.Errorf("%s %s: %d %s; want %d", call.method, call.url, status, text, call.want)
		}
	}
	untilReady(c) // without the token
	cfg.MetricsListen = "nowhere"
	if _, err := gateway.New(cfg); err == nil || !strings.Contains(err.Error(), "MetricsListen") {
		t.Errorf("%v", err)
	}
}

// A port is ready while everything that it needs is there: only leases need Redis.
func TestReadinessIsToldByPort(t *testing.T) {
	t.Parallel()
	cfg := config(t, testenv.Postgres(t))
	servers := testenv.OwnRedis(t, 3)
	for i, s := range servers {
		cfg.RedisNodes[i].Addr = s.Addr
	}
	c := start(t, cfg)
	testenv.Eventually(t, "PostgreSQL is accepted", func() bool { return c.do("GET", "/readyz", nil).Status == http.StatusOK })
	for _, s := range servers[:2] {
		if err := s.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, "only leases are not ready", func() error { // a check may take too long for one scrape
		series := c.scraped()
		for surface, want := range map[string]string{"lease": "0", "pg": "1", "s3": "1", "sql": "1"} {
			if got := series[`fencegate_ready{surface="`+surface+`"}`]; got != want {
				return fmt.Errorf("%s: %q; want %q", surface, got, want)
			}
		}
		if away := series[`fencegate_lease_nodes{state="away"}`]; away != "2" {
			return fmt.Errorf("%q nodes are away", away)
		}
		return nil
	})
}

func TestTheConnectionsOfTheMetricsListenerAreBounded(t *testing.T) {
	t.Parallel()
	cfg := config(t, testenv.Postgres(t))
	cfg.MetricsListen = "127.0.0.1:0"
	c := start(t, cfg)
	var all []net.Conn
	for range 65 {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", c.g.Addrs().Metrics)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		all = append(all, conn)
	}
	_ = all[0].SetDeadline(time.Now().Add(8 * time.Second)) // shorter than a server's timeout for headers
	if _, err := all[0].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the first of 65 stays open: %v", err)
	}
}
