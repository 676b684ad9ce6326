//go:build balancer && unix

package haproxy_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/testenv"
)

const (
	gateways = 3
	lameDuck = 4 * time.Second
)

// ports are addresses on loopback.
type ports struct{ api, pg, s3 string }

// world is three gateways as processes behind HAProxy.
type world struct {
	t    *testing.T
	pg   testenv.PG
	path string // of the binary
	env  []string
	at   [gateways]ports
	run  [gateways]*child.Process
	lb   ports
}

func setup(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, pg: testenv.Postgres(t), path: filepath.Join(t.TempDir(), "fencegate")}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", w.path, "../../cmd/fencegate").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	if _, err := w.pg.Pool(t).Exec(t.Context(), "CREATE TABLE load (who text, n bigint); GRANT SELECT, INSERT ON load TO fence_writer"); err != nil {
		t.Fatal(err)
	}
	var nodes []string
	for _, n := range testenv.OwnRedis(t, 3) {
		nodes = append(nodes, n.Addr)
	}
	key := filepath.Join(t.TempDir(), "master.key")
	if err := os.WriteFile(key, []byte("k1:"+strings.Repeat("5a", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	w.lb = ports{w.free(), w.free(), w.free()}
	w.env = append(os.Environ(), "FENCEGATE_POSTGRES_URL="+w.pg.GatewayURL, "FENCEGATE_REDIS="+strings.Join(nodes, ","),
		"FENCEGATE_MASTER_KEY_FILE="+key, "FENCEGATE_BLOBS="+t.TempDir(), "FENCEGATE_BUCKET=load=prefix:1", "FENCEGATE_INIT=true",
		"FENCEGATE_NODE_TIMEOUT=2s", "FENCEGATE_PG_PROXY_FROM=127.0.0.0/8", "FENCEGATE_LAME_DUCK="+lameDuck.String(), "FENCEGATE_DRAIN_TIMEOUT=3s",
		"FENCEGATE_PG_ADVERTISE="+w.lb.pg, "FENCEGATE_S3_ADVERTISE=http://"+w.lb.s3)
	for i := range w.at {
		w.at[i] = ports{w.free(), w.free(), w.free()}
		w.start(i)
	}
	for i := range w.at {
		w.ready(i)
	}
	w.haproxy()
	w.until("HAProxy serves", func() bool { return w.answers(w.lb.api, "/readyz") })
	return w
}

func (w *world) free() string {
	port, err := child.FreePort()
	if err != nil {
		w.t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// start starts a gateway at its fixed addresses.
func (w *world) start(i int) {
	w.t.Helper()
	log, err := os.OpenFile(filepath.Join(w.t.ArtifactDir(), fmt.Sprintf("gateway-%d.log", i+1)), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	w.run[i], err = child.Start(child.Spec{Path: w.path, Env: w.env, Log: log, Args: []string{
		"serve", "--api-listen", w.at[i].api, "--pg-listen", w.at[i].pg, "--s3-listen", w.at[i].s3, "--max-ttl", "5m",
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(w.run[i].Kill)
}

func (w *world) ready(i int) {
	w.t.Helper()
	w.until(fmt.Sprintf("gateway %d is ready", i+1), func() bool { return w.answers(w.at[i].api, "/readyz?for=lease") })
}

// haproxy starts a real HAProxy, with this folder's configuration and the test's addresses.
func (w *world) haproxy() {
	t := w.t
	t.Helper()
	text, err := os.ReadFile("haproxy.cfg")
	if err != nil {
		t.Fatal(err)
	}
	cfg := strings.NewReplacer("bind :7070", "bind "+w.lb.api, "bind :7432", "bind "+w.lb.pg, "bind :7480", "bind "+w.lb.s3).Replace(string(text))
	for i, at := range w.at {
		name := fmt.Sprintf("gateway%d", i+1)
		_, api, _ := strings.Cut(at.api, ":")
		var lines []string
		for line := range strings.Lines(cfg) {
			if strings.HasPrefix(strings.TrimSpace(line), "server "+name+" ") {
				line = strings.NewReplacer(name+":7070", at.api, name+":7432", at.pg, name+":7480", at.s3, "port 7070", "port "+api).Replace(line)
			}
			lines = append(lines, line)
		}
		cfg = strings.Join(lines, "")
	}
	path := filepath.Join(t.TempDir(), "haproxy.cfg")
	if err := os.WriteFile(path, []byte(cfg), 0o600); err != nil {
		t.Fatal(err)
	}
	program, err := exec.LookPath("haproxy")
	if err != nil {
		program = "/usr/sbin/haproxy"
	}
	if out, err := exec.CommandContext(t.Context(), program, "-c", "-f", path).CombinedOutput(); err != nil {
		t.Fatalf("haproxy.cfg: %v\n%s", err, out)
	}
	log, err := os.Create(filepath.Join(t.ArtifactDir(), "haproxy.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	p, err := child.Start(child.Spec{Path: program, Log: log, Args: []string{"-db", "-f", path}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("haproxy: %s", text)
		}
	})
}

func (w *world) answers(addr, path string) bool {
	ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, http.NoBody)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func (w *world) until(what string, is func() bool) {
	w.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(30 * time.Second); !is(); {
		if time.Now().After(end) {
			w.t.Fatalf("not in time: %s", what)
		}
		<-tick.C
	}
}
