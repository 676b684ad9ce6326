package cluster_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/robustness/client"
	"github.com/fencegate/fencegate/robustness/cluster"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if programs.dir != "" {
		_ = os.RemoveAll(programs.dir)
		child.Removed(programs.dir)
	}
	if err := goleak.Find(testenv.LeakOptions()...); err != nil && code == 0 {
		fmt.Println(err)
		code = 1
	}
	os.Exit(code)
}

// programs are built once.
var programs struct {
	sync.Mutex

	dir, fencegate, client, s3 string
}

func build(t *testing.T) (fencegate, client string) {
	t.Helper()
	programs.Lock()
	defer programs.Unlock()
	if programs.client != "" {
		return programs.fencegate, programs.client
	}
	var err error
	programs.dir, err = os.MkdirTemp("", "fencegate-cluster-test-")
	must(t, err)
	must(t, child.RemoveAtDeath(programs.dir))
	source := filepath.Join("..", "..", "cmd", "fencegate")
	programs.fencegate, err = cluster.Build(t.Context(), source, programs.dir, nil)
	must(t, err)
	programs.client, err = cluster.Build(t.Context(), filepath.Join("testdata", "client"), programs.dir, nil)
	must(t, err)
	return programs.fencegate, programs.client
}

func buildS3(t *testing.T) string {
	build(t)
	programs.Lock()
	defer programs.Unlock()
	if programs.s3 == "" {
		source := filepath.Join("..", "..", "internal", "testenv", "s3posix", "s3server")
		var err error
		programs.s3, err = cluster.Build(t.Context(), source, programs.dir, nil)
		must(t, err)
	}
	return programs.s3
}

// world is a cluster with client 1.
type world struct {
	*cluster.Cluster

	t   *testing.T
	cfg client.Config
}

func setup(t *testing.T, opts cluster.Options) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	effects, err := os.ReadFile(filepath.Join("..", "judge", "effects.sql"))
	must(t, err)
	opts.Program, opts.Client = build(t)
	opts.SQL = []string{string(effects)}
	c, err := cluster.Start(ctx, opts)
	must(t, err)
	t.Cleanup(func() {
		must(t, c.Close())
		wantNothingLeft(t, c.Dir())
	})
	w := &world{Cluster: c, t: t}
	w.cfg, err = c.ClientConfig(1, 1)
	must(t, err)
	must(t, c.Setup(ctx, []string{"robust/r1-1", "robust/r1-2"}))
	return w
}

// wantNothingLeft expects no process with a path below the folder, no mount and no folder.
func wantNothingLeft(t *testing.T, dir string) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	for _, file := range append(lines, "/proc/mounts") {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), dir) {
			t.Errorf("left: %s: %s", file, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is left: %v", err)
	}
}

// eventually waits until ask returns no error.
func (w *world) eventually(what string, ask func() error) {
	w.t.Helper()
	tick, limit := time.NewTicker(50*time.Millisecond), time.NewTimer(60*time.Second)
	defer tick.Stop()
	defer limit.Stop()
	for {
		err := ask()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-limit.C:
			w.t.Fatalf("%s: still %v", what, err)
		}
	}
}

type lease struct {
	Resource string `json:"resource"`
	Token    int64  `json:"token,string"`
	Grant    string `json:"grant"`
	Handle   string `json:"handle"`
}

// acquire takes a lease through a gateway and its relay. Unless it is to be kept, it is released at once.
func (w *world) acquire(gateway int, resource string) (l lease, err error) {
	body, err := json.Marshal(map[string]string{"resource": resource, "ttl": "3s", "wait": "4s"})
	if err != nil {
		return l, err
	}
	text, err := w.post(gateway, "/v1/leases", body)
	if err != nil {
		return l, err
	}
	return l, json.Unmarshal(text, &l)
}

func (w *world) post(gateway int, path string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.cfg.Gateways[gateway].API+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+w.cfg.Token)
	req.Header.Set("Content-Type", "application/json")
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode >= 300 {
		err = fmt.Errorf("%s: %s", res.Status, text)
	}
	return text, err
}

// write writes a row under a lease, directly to PostgreSQL and through the relays.
func (w *world) write(l lease, value string) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, w.cfg.WriterURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT fence.use($1, $2)", l.Resource, l.Grant); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE judged.registers SET value = $1, token = $2 WHERE resource = $3",
			value, l.Token, l.Resource)
		return err
	})
}

// works acquires a lease from every gateway and writes under it.
func (w *world) works(value string) (last lease) {
	w.t.Helper()
	for i := range w.Gateways {
		var l lease
		w.eventually("a lease of "+w.Gateways[i].Name, func() (err error) {
			l, err = w.acquire(i, "robust/r1-1")
			return err
		})
		if l.Token <= last.Token {
			w.t.Errorf("token %d after %d", l.Token, last.Token)
		}
		must(w.t, w.write(l, fmt.Sprintf("%s %d", value, i)))
		body, err := json.Marshal(map[string]string{"handle": l.Handle})
		must(w.t, err)
		_, err = w.post(i, "/v1/leases/release", body)
		must(w.t, err)
		last = l
	}
	return last
}

func (w *world) values() []string {
	w.t.Helper()
	effects, err := w.Effects(w.t.Context(), 0)
	must(w.t, err)
	var values []string
	for _, e := range effects {
		values = append(values, e.Value)
	}
	return values
}
