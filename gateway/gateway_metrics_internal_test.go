package gateway

import (
	"bytes"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/lock"
)

var updateReference = flag.Bool("update", false, "write docs/reference/metrics.md")

// complete returns a gateway with every part that has metrics. It does not connect.
func complete(t *testing.T) *Gateway {
	t.Helper()
	principals, err := access.New([]access.Definition{{Name: "ops", Tokens: []access.Digest{access.DigestOf("ops")}}})
	if err != nil {
		t.Fatal(err)
	}
	const nowhere = "127.0.0.1:1"
	g, err := New(Config{
		PostgresURL: "postgres://gateway@" + nowhere + "/none", SQLURL: "postgres://writer@" + nowhere + "/none", KeyPrefix: "none",
		RedisNodes: []lock.Node{{Addr: nowhere}}, MasterKey: "k1:" + strings.Repeat("5a", 32),
		APIListen: "127.0.0.1:0", PGListen: "127.0.0.1:0", S3Listen: "127.0.0.1:0", BlobDir: t.TempDir(),
		Principals: principals, Logger: slog.New(slog.DiscardHandler), MetricsPrefixes: []string{"jobs/"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Stop() })
	return g
}

// happen makes every series exist whose labels depend on events.
func happen(g *Gateway) {
	g.registry.Observe("/v1/leases", "POST", 201, time.Second)
	g.leasing.Acquired(time.Second, 1)
	g.leasing.Slow("node")
	g.ofPG.Refused("53300")
	g.ofPG.Ended("57P01")
	g.ofS3.Answered("PutObject", 412, "StaleFencingToken", time.Second)
}

// described is a registered collector's description of a metric.
type described struct{ help, labels string }

var descriptor = regexp.MustCompile(`^Desc\{fqName: "(\w+)", help: ("(?:[^"\\]|\\.)*"), unit: "", constLabels: \{\}, variableLabels: \{([\w,]*)\}`)

func descriptions(t *testing.T, registry *prometheus.Registry) map[string]described {
	t.Helper()
	all := make(chan *prometheus.Desc)
	go func() {
		registry.Describe(all)
		close(all)
	}()
	found := map[string]described{}
	for d := range all {
		m := descriptor.FindStringSubmatch(d.String())
		if m == nil {
			if strings.Contains(d.String(), `"fencegate_`) {
				t.Errorf("not understood: %s", d)
			}
			continue
		}
		help, err := strconv.Unquote(m[2])
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(m[1], "fencegate_") {
			found[m[1]] = described{help, m[3]}
		}
	}
	return found
}

// The reference page matches the collectors. A metric that queries PostgreSQL or Redis has no sample here and counts as
// a gauge; TestEachMetricIsOnThePageAndNoLabelNamesAResource compares each type with a scrape.
func TestTheReferenceOfMetricsIsCurrent(t *testing.T) {
	g := complete(t)
	happen(g)
	families, err := g.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	for _, f := range families {
		kinds[f.GetName()] = strings.ToLower(f.GetType().String())
	}
	var page bytes.Buffer
	page.WriteString("# Metrics of a gateway\n\nMade from the registered collectors by `make reference`. [Metrics](../metrics.md) says what to do about them. A port that\n" +
		"a gateway does not have has no metrics there. `go_…` and `process_…` are those of Prometheus' Go client.\n\n" +
		"| metric | type | labels | help |\n|---|---|---|---|\n")
	all := descriptions(t, g.registry.Registry)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		d, kind, labels := all[name], kinds[name], ""
		if kind == "" {
			kind = "gauge"
		}
		if d.labels != "" {
			labels = "`" + strings.ReplaceAll(d.labels, ",", "`, `") + "`"
		}
		if !strings.HasSuffix(d.help, ".") {
			t.Errorf("%s has the help %q, which is no sentence", name, d.help)
		}
		fmt.Fprintf(&page, "| `%s` | %s | %s | %s |\n", name, kind, labels, d.help)
	}
	path := filepath.Join("..", "docs", "reference", "metrics.md")
	if *updateReference {
		if err := os.WriteFile(path, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	committed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 || string(committed) != page.String() {
		t.Errorf("docs/reference/metrics.md differs from the %d metrics of a gateway: make reference", len(all))
	}
}
