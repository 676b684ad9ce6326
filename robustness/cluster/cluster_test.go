package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	product "github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/robustness/client"
	"github.com/fencegate/fencegate/robustness/cluster"
)

// programs is the folder of the tests' programs.
var programs string

func TestMain(m *testing.M) {
	var err error
	if programs, err = os.MkdirTemp("", "fencegate-cluster-test-"); err == nil {
		err = child.RemoveAtDeath(programs)
	}
	code := m.Run()
	err = errors.Join(err, os.RemoveAll(programs), goleak.Find(testenv.LeakOptions()...))
	child.Removed(programs)
	if err != nil {
		fmt.Println(err)
		code = max(code, 1)
	}
	os.Exit(code)
}

var build = sync.OnceValues(func() (built [3]string, err error) {
	for i, source := range []string{"../../cmd/fencegate", "testdata/client", "../../internal/testenv/s3posix/s3server"} {
		var failed error
		built[i], failed = cluster.Build(context.Background(), source, programs, nil)
		err = errors.Join(err, failed)
	}
	return built, err
})

const first, second = "robust/r1-1", "robust/r1-2"

// world is a cluster with client 1.
type world struct {
	*cluster.Cluster

	t    *testing.T
	cfg  client.Config
	apis []*product.Client // of client 1, for each gateway
}

func setup(t *testing.T, opts cluster.Options, onS3 bool) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	effects, err := os.ReadFile("../judge/effects.sql")
	must(t, err)
	built, err := build()
	must(t, err)
	opts.Program, opts.Client, opts.SQL = built[0], built[1], []string{string(effects)}
	if onS3 {
		opts.BlobS3 = built[2]
	}
	c, err := cluster.Start(ctx, opts)
	must(t, err)
	t.Cleanup(func() {
		must(t, c.Close())
		wantNothingLeft(t, c.Dir())
	})
	w := &world{Cluster: c, t: t}
	w.cfg, err = c.ClientConfig(1, 1)
	must(t, err)
	for _, g := range w.cfg.Gateways {
		api, err := product.New(product.Config{URL: g.API, Token: w.cfg.Token})
		must(t, err)
		w.apis = append(w.apis, api)
	}
	must(t, c.Setup(ctx, []string{first, second}))
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
func (w *world) eventually(what string, ask func(context.Context) error) {
	w.t.Helper()
	testenv.Eventually(w.t, what, func() error { return ask(w.t.Context()) })
}

// acquire takes a lease through a gateway and its relay.
func (w *world) acquire(gateway int, resource string) (product.Lease, error) {
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	return w.apis[gateway].Acquire(ctx, product.AcquireRequest{Resource: resource, TTL: cluster.MaxTTL, Wait: 4 * time.Second})
}

// write writes a row under a lease, directly to PostgreSQL and through the relays.
func (w *world) write(l product.Lease, value string) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, w.cfg.WriterURL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT fence.use($1, $2)", l.Resource, l.Presented); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE judged.registers SET value = $1, token = $2 WHERE resource = $3", value, l.Token, l.Resource)
		return err
	})
}

// works acquires a lease from every gateway and writes under it.
func (w *world) works(value string) (last product.Lease) {
	w.t.Helper()
	for i := range w.apis {
		var l product.Lease
		w.eventually(fmt.Sprintf("a lease of gateway %d", i+1), func(context.Context) (err error) {
			l, err = w.acquire(i, first)
			return err
		})
		if l.Token <= last.Token {
			w.t.Errorf("token %d after %d", l.Token, last.Token)
		}
		must(w.t, w.write(l, fmt.Sprintf("%s %d", value, i)))
		must(w.t, w.apis[i].Release(w.t.Context(), l.Handle))
		last = l
	}
	return last
}

// values are the effects' values.
func (w *world) values() (values []string) {
	w.t.Helper()
	effects, err := w.Effects(w.t.Context(), 0)
	must(w.t, err)
	for _, e := range effects {
		values = append(values, e.Value)
	}
	return values
}
