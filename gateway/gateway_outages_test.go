//go:build unix

package gateway_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// closedPort returns an address on which nothing listens while the test runs: a connection occupies it as its local
// address.
func closedPort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = conn.Close(), ln.Close() })
	return conn.LocalAddr().String()
}

func TestWithoutPostgreSQLNothingIsHalfDone(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	cfg := config(t, pg)
	healthy := start(t, cfg)
	broken := cfg
	gone := closedPort(t)
	broken.PostgresURL, broken.SQLURL = "postgres://u:hunter2@"+gone+"/d", "postgres://u:hunter2@"+gone+"/d"
	broken.BlobDir, broken.Buckets = t.TempDir(), nil
	c := start(t, broken)
	l := healthy.acquire("held", "60s")

	for _, call := range []struct {
		method, path string
		body         any
		headers      []string
	}{
		{"POST", "/v1/leases", map[string]string{"resource": "r"}, nil},
		{"POST", "/v1/leases", map[string]string{"resource": "r", "wait": "10s"}, nil},
		{"POST", "/v1/leases/credentials", map[string]string{"handle": l.handle}, nil},
		{"GET", "/v1/resources/r", nil, nil},
		{"GET", "/v1/resources", nil, nil},
		{"POST", "/v1/resources/held/revoke", map[string]string{}, nil},
		{"PUT", "/v1/buckets/bucket", map[string]string{"rule": "key"}, nil},
		{"POST", "/v1/sql", map[string]any{"statements": []any{map[string]string{"sql": "SELECT 1"}}}, []string{"Fencing-Resource", "held", "Fencing-Token", l.grant}},
		{"GET", "/readyz", nil, nil},
	} {
		a := c.want(http.StatusServiceUnavailable, call.method, call.path, call.body, call.headers...)
		if a.text("code") != "unavailable" || a.text("part") != "postgresql" || strings.Contains(fmt.Sprint(a.Body), "hunter2") {
			t.Errorf("%s %s: %v", call.method, call.path, a.Body)
		}
	}
	c.want(http.StatusOK, "GET", "/healthz", nil)
	// Held leases stay alive: renewing needs no PostgreSQL.
	c.want(http.StatusOK, "POST", "/v1/leases/renew", map[string]string{"handle": l.handle})
	// The failed acquisitions left no lock and no fence.
	healthy.want(http.StatusNotFound, "GET", "/v1/resources/r", nil)
	healthy.acquire("r", "30s")
}

func TestWithoutARedisQuorumNothingIsHalfDone(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	guarded(t, pg)
	nodes := testenv.OwnRedis(t, 3)
	cfg := config(t, pg)
	cfg.RedisNodes, cfg.NodeTimeout = nil, 2*time.Second // a renewal is tried for twice as long
	for _, n := range nodes {
		cfg.RedisNodes = append(cfg.RedisNodes, lock.Node{Addr: n.Addr})
	}
	c := start(t, cfg)
	l := c.acquire("orders/1001", "60s")
	conn := c.connect(pg, l)
	untilAnswered(c, func(a answer) bool { return a.Status == http.StatusOK && a.Body["degraded"] == nil }) // all nodes serve
	for i, n := range nodes[:2] {
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			continue
		}
		// One node is away and a quorum is left: ready, and the answer says so without the node's address.
		var text string
		untilAnswered(c, func(a answer) bool {
			degraded, _ := a.Body["degraded"].(map[string]any)
			text, _ = degraded["redis"].(string)
			return a.Status == http.StatusOK && strings.Contains(text, "1 of 3 Redis nodes")
		})
		if strings.Contains(text, n.Addr) {
			t.Errorf("one node is away: %q", text)
		}
	}
	for _, call := range []struct {
		method, path string
		body         any
	}{
		{"POST", "/v1/leases", map[string]string{"resource": "new"}},
		{"POST", "/v1/leases/renew", map[string]string{"handle": l.handle}},
		{"GET", "/readyz", nil},
	} {
		a := c.want(http.StatusServiceUnavailable, call.method, call.path, call.body)
		if a.text("code") != "unavailable" || a.text("part") != "redis" {
			t.Errorf("%s %s: %v", call.method, call.path, a.Body)
		}
	}
	c.want(http.StatusNotFound, "GET", "/v1/resources/new", nil) // no fence was raised
	if a := c.want(http.StatusOK, "GET", "/v1/resources/orders/1001", nil); a.Body["locked"] != nil || a.text("token") != l.token {
		t.Errorf("the fence's record without Redis: %v; want locked null", a.Body)
	}
	// Writes under the current grant still work: the fence does not need Redis.
	if _, err := conn.Exec(t.Context(), updateOrder, "without redis"); err != nil {
		t.Errorf("write under the current grant: %v", err)
	}
}

// Redis nodes that are frozen for a while delay a waiting client, but do not cost it its lease.
func TestAWaitGoesOnWithoutARedisQuorum(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	nodes := testenv.OwnRedis(t, 3)
	cfg := config(t, pg)
	cfg.RedisNodes, cfg.NodeTimeout = nil, 2*time.Second
	for _, n := range nodes {
		cfg.RedisNodes = append(cfg.RedisNodes, lock.Node{Addr: n.Addr})
	}
	c := start(t, cfg)
	c.acquire("before", "30s")
	for _, n := range nodes[:2] {
		if err := n.Freeze(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = n.Thaw() })
	}
	c.want(http.StatusServiceUnavailable, "POST", "/v1/leases", map[string]string{"resource": "r", "ttl": "30s"})
	begun := time.Now()
	a := c.want(http.StatusServiceUnavailable, "POST", "/v1/leases", map[string]string{"resource": "r", "ttl": "30s", "wait": "500ms"})
	if took := time.Since(begun); took < 500*time.Millisecond || a.text("part") != "redis" {
		t.Errorf("after %v: %v", took, a.Body)
	}
	got := make(chan answer, 1)
	go func() {
		got <- c.do("POST", "/v1/leases", map[string]string{"resource": "r", "ttl": "30s", "wait": "60s"})
	}()
	select {
	case a := <-got:
		t.Errorf("it did not wait: %d %v", a.Status, a.Body)
	case <-time.After(500 * time.Millisecond):
		if err := errors.Join(nodes[0].Thaw(), nodes[1].Thaw()); err != nil {
			t.Fatal(err)
		}
		if a := <-got; a.Status != http.StatusCreated {
			t.Errorf("%d %v", a.Status, a.Body)
		}
	}
}

func TestIdleGatewaysAdmitANodeThatLostItsRun(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	nodes := testenv.OwnRedisWith(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	cfg := config(t, pg)
	cfg.RedisNodes, cfg.MaxTTL = []lock.Node{{Addr: nodes[0].Addr}}, 2*time.Second
	c, other := start(t, cfg), start(t, cfg)
	armed(t, pg, "r")                                                                                 // so that the nodes are in use
	sight, err := lock.New(lock.Config{Nodes: cfg.RedisNodes, KeyPrefix: lock.Prefix(cfg.KeyPrefix)}) // as `nodes status` sees it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sight.Close() })
	if err := errors.Join(nodes[0].Kill(), nodes[0].Restart(t.Context())); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "a quorum of nodes answers", func() error { _, err := sight.Ready(t.Context()); return err })
	for _, c := range []*client{c, other} {
		untilReady(c)
	}
}

func TestStartSaysWhatItWaitedFor(t *testing.T) {
	t.Parallel()
	cfg := config(t, testenv.Postgres(t))
	cfg.PostgresURL = "postgres://u:hunter2@" + closedPort(t) + "/d"
	cfg.StartTimeout = 300 * time.Millisecond
	g, err := gateway.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "reach PostgreSQL") {
		t.Errorf("start without PostgreSQL: %v", err)
	}
	if err := g.Stop(); err != nil {
		t.Errorf("stop after a failed start: %v", err)
	}
	if err := g.Start(t.Context()); err == nil {
		t.Error("started again")
	}
}

func TestTakenPortIsAnErrorAndFreesTheRest(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	cfg := config(t, testenv.Postgres(t))
	cfg.S3Listen = taken.Addr().String()
	g, err := gateway.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "S3 port") {
		t.Errorf("%v; want an error about the S3 port", err)
	}
}

func TestOffLoopbackATokenIsGenerated(t *testing.T) {
	t.Parallel()
	cfg := config(t, testenv.Postgres(t))
	for listen, generates := range map[string]bool{"127.0.0.1:0": false, "localhost:0": false, "[::1]:0": false, "0.0.0.0:0": true, ":0": true, "10.1.2.3:0": true, "gateway.example:0": true} {
		cfg.APIListen, cfg.BlobDir = listen, t.TempDir()
		g, err := gateway.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if got := g.GeneratedToken(); (len(got) >= 20) != generates {
			t.Errorf("%s: generated = %v, want %v", listen, got != "", generates)
		}
		if err := g.Stop(); err != nil {
			t.Errorf("stop without a start: %v", err)
		}
	}
	cfg.APIListen, cfg.BlobDir = "0.0.0.0:0", t.TempDir()
	c := start(t, cfg)
	_, port, _ := net.SplitHostPort(c.g.Addrs().API)
	resp, err := c.http.Get("http://127.0.0.1:" + port + "/v1/endpoints")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without the token: %d", resp.StatusCode)
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:"+port+"/v1/endpoints", nil)
	req.Header.Set("Authorization", "Bearer "+c.g.GeneratedToken())
	if resp, err = c.http.Do(req); err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("with the token: %d", resp.StatusCode)
	}
}

func TestConfigIsValidatedByField(t *testing.T) {
	t.Parallel()
	good := gateway.Config{
		PostgresURL: "postgres://u:hunter2@127.0.0.1/d", RedisNodes: []lock.Node{{Addr: "127.0.0.1:1"}}, MasterKey: masterKey,
		S3Listen: "127.0.0.1:0", BlobDir: t.TempDir(),
	}
	for name, c := range map[string]struct {
		change func(*gateway.Config)
		field  string
	}{
		"no PostgreSQL":       {func(c *gateway.Config) { c.PostgresURL = "" }, "PostgresURL"},
		"no address":          {func(c *gateway.Config) { c.PostgresURL = "postgres://u:hunter2@:x/d" }, "PostgresURL"},
		"no SQL address":      {func(c *gateway.Config) { c.SQLURL = "postgres://u:hunter2@:x/d" }, "SQL URL"},
		"a source's name":     {func(c *gateway.Config) { c.LeaseSource = "etcd" }, "LeaseSource"},
		"no source's name":    {func(c *gateway.Config) { c.LeaseSource = "consul" }, "LeaseSource"},
		"two sources":         {func(c *gateway.Config) { c.PostgresLeases = true }, "PostgresLeases"},
		"no Redis":            {func(c *gateway.Config) { c.RedisNodes = nil }, "RedisNodes"},
		"Redis without port":  {func(c *gateway.Config) { c.RedisNodes = []lock.Node{{Addr: "redis1"}} }, "RedisNodes"},
		"Redis on port x":     {func(c *gateway.Config) { c.RedisNodes = []lock.Node{{Addr: "redis1:x"}} }, "RedisNodes"},
		"Redis on no host":    {func(c *gateway.Config) { c.RedisNodes = []lock.Node{{Addr: ":6379"}} }, "RedisNodes"},
		"Redis with a scheme": {func(c *gateway.Config) { c.RedisNodes = []lock.Node{{Addr: "redis://redis1:6379"}} }, "RedisNodes"},
		"nobody verifies":     {func(c *gateway.Config) { c.Principals = byCertificate(t) }, "APITLSClientCA"},
		"optional for nobody": {func(c *gateway.Config) { c.APITLSClientOptional = true }, "APITLSClientOptional"},
		"half of the pair":    {func(c *gateway.Config) { c.PGListen, c.PGTLSCert = "127.0.0.1:0", "x.crt" }, "PGTLSCert"},
		"no such pair":        {func(c *gateway.Config) { c.PGListen, c.PGTLSCert, c.PGTLSKey = "127.0.0.1:0", "x.crt", "x.key" }, "PGTLSCert"},
		"a pair for no port":  {func(c *gateway.Config) { c.PGTLSCert, c.PGTLSKey = "x.crt", "x.key" }, "PGTLSCert"},
		"negative limit":      {func(c *gateway.Config) { c.PG.MaxConnections = -1 }, "PG.MaxConnections"},
		"negative sweep":      {func(c *gateway.Config) { c.SweepEvery = -1 }, "SweepEvery"},
		"no key":              {func(c *gateway.Config) { c.MasterKey = "" }, "keyring"},
		"a short key":         {func(c *gateway.Config) { c.MasterKey = "k1:hunter2" }, "keyring"},
		"no blobs":            {func(c *gateway.Config) { c.BlobDir = "" }, "BlobDir"},
		"half of the keys":    {func(c *gateway.Config) { c.S3.RootAccessKey = "x" }, "S3.RootAccessKey"},
		"no such rule":        {func(c *gateway.Config) { c.Buckets = map[string]string{"b": "row"} }, "rule"},
		"buckets without S3":  {func(c *gateway.Config) { c.S3Listen, c.Buckets = "", map[string]string{"b": "key"} }, "Buckets"},
		"negative time":       {func(c *gateway.Config) { c.StartTimeout = -1 }, "StartTimeout"},
		"default over MaxTTL": {func(c *gateway.Config) { c.DefaultTTL, c.MaxTTL = 2*time.Second, time.Second }, "DefaultTTL"},
	} {
		cfg := good
		c.change(&cfg)
		_, err := gateway.New(cfg)
		var invalid *fence.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != c.field || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want field %s", name, err, c.field)
		}
	}
}
