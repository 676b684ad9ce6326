package client

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/robustness/history"
	"github.com/fencegate/fencegate/robustness/relay"
	"github.com/fencegate/fencegate/wire"
)

func TestMain(m *testing.M) { testenv.VerifyMain(m) }

// stackTTL is the longest lease of a world.
const stackTTL = 30 * time.Second

// world is a stack with two gateways as processes, and the tables for a run's judge.
type world struct {
	cfg    Config
	admin  *pgxpool.Pool
	relays []*relay.Relay
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir := t.TempDir()
	pg, nodes := testenv.Postgres(t), testenv.Redis(t, 3)
	w := &world{admin: pg.Pool(t), cfg: Config{
		Number: 1, Workers: 2, MaxTTL: stackTTL, Redis: nodes.Addrs, Prefix: lock.DefaultKeyPrefix + nodes.Prefix,
		WriterURL: pg.As(t, "fence_writer"), FenceURL: pg.GatewayURL, Bucket: "robust", OnceBucket: "robust-once",
		Program: filepath.Join(dir, "fencegate"), Python: os.Getenv("ROBUSTNESS_PYTHON"),
	}}
	if w.cfg.Python == "" {
		w.cfg.Python = "python3"
	}
	var missing error
	if w.cfg.PSQL, missing = exec.LookPath("psql"); missing != nil {
		t.Fatal(missing)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", w.cfg.Program, "./cmd/fencegate")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	w.judged(t)
	master := filepath.Join(dir, "master")
	must(t, os.WriteFile(master, []byte("test:"+strings.Repeat("4f", 32)), 0o600))
	for range 2 {
		w.gateway(t, dir, pg.As(t, "fence_writer"))
	}
	_, err := w.api(t).SetBucket(t.Context(), w.cfg.OnceBucket, wire.BucketRequest{Rule: "prefix:1", WriteOnce: "1h"})
	must(t, err)
	return w
}

// gateway starts another gateway, and waits until it gives leases.
func (w *world) gateway(t *testing.T, dir, sqlURL string) {
	t.Helper()
	var addr [3]string
	for i := range addr {
		free, err := child.FreePort()
		must(t, err)
		addr[i] = "127.0.0.1:" + strconv.Itoa(free)
	}
	log, err := os.Create(filepath.Join(dir, "log-"+strconv.Itoa(len(w.cfg.Gateways))))
	must(t, err)
	p, err := child.Start(child.Spec{
		Path: w.cfg.Program, Log: log,
		Args: []string{
			"serve", "--redis", strings.Join(w.cfg.Redis, ","), "--redis-prefix", w.cfg.Prefix, "--init", "--node-timeout", "2s",
			"--master-key-file", filepath.Join(dir, "master"), "--max-ttl", stackTTL.String(), "--drain-timeout", "1s",
			"--api-listen", addr[0], "--pg-listen", addr[1], "--s3-listen", addr[2], "--blobs", filepath.Join(dir, "blobs"),
			"--bucket", w.cfg.Bucket + "=prefix:1",
		},
		Env: append(os.Environ(), "FENCEGATE_POSTGRES_URL="+w.cfg.FenceURL, "FENCEGATE_SQL_URL="+sqlURL),
	})
	must(t, err)
	t.Cleanup(func() {
		p.Stop(10 * time.Second)
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("%s", text[max(0, len(text)-4000):])
		}
		_ = log.Close()
	})
	w.cfg.Gateways = append(w.cfg.Gateways, Gateway{
		API: "http://" + addr[0], PGURL: at(t, w.cfg.WriterURL, addr[1]), S3: "http://" + addr[2],
	})
	c, err := client.New(client.Config{URL: "http://" + addr[0]})
	must(t, err)
	testenv.Eventually(t, "a lease", func() error {
		lease, err := c.Acquire(t.Context(), client.AcquireRequest{Resource: "ready", TTL: time.Second})
		return errors.Join(err, c.Release(t.Context(), lease.Handle))
	})
}

// at is an address with another host and port.
func at(t *testing.T, address, host string) string {
	t.Helper()
	u, err := url.Parse(address)
	must(t, err)
	u.Host = host
	return u.String()
}

// behind is the world behind relays of its own.
func (w *world) behind(t *testing.T) *world {
	t.Helper()
	own := *w
	way := func(address string) string {
		u, err := url.Parse(address)
		must(t, err)
		r, err := relay.New(u.Host)
		must(t, err)
		t.Cleanup(func() { must(t, r.Close()) })
		own.relays = append(own.relays, r)
		return at(t, address, r.Addr())
	}
	own.cfg.WriterURL, own.cfg.Gateways = way(w.cfg.WriterURL), nil
	for _, g := range w.cfg.Gateways {
		own.cfg.Gateways = append(own.cfg.Gateways, Gateway{API: way(g.API), PGURL: way(g.PGURL), S3: way(g.S3)})
	}
	return &own
}

func (w *world) api(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{URL: w.cfg.Gateways[0].API})
	must(t, err)
	return c
}

// judged makes the tables of a run's judge.
func (w *world) judged(t *testing.T) {
	t.Helper()
	effects, err := os.ReadFile(filepath.Join("..", "judge", "effects.sql"))
	must(t, err)
	_, err = w.admin.Exec(t.Context(), string(effects))
	must(t, err)
}

// revoke revokes the leases, as an operator does.
func (w *world) revoke(t *testing.T, l *lease) {
	t.Helper()
	for _, g := range l.grants {
		_, err := w.api(t).Revoke(bounded(t), g.Resource, "test")
		must(t, err)
	}
}

var resources atomic.Int64

// resource returns a new resource with its row.
func (w *world) resource(t *testing.T) string {
	t.Helper()
	name := "robust/r0-" + strconv.FormatInt(resources.Add(1), 10)
	c := w.api(t)
	l, err := c.Acquire(t.Context(), client.AcquireRequest{Resource: name, TTL: 10 * time.Second})
	must(t, err)
	grant, err := l.Grant()
	must(t, err)
	w.row(t, grant)
	must(t, c.Release(t.Context(), l.Handle))
	return name
}

// row makes the row of a resource.
func (w *world) row(t *testing.T, grant fence.Grant) {
	t.Helper()
	must(t, pgfence.InTx(t.Context(), w.admin, grant, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "INSERT INTO judged.registers (resource) VALUES ($1)", grant.Resource)
		return err
	}))
}

// values returns the values of a register, in order.
func (w *world) values(t *testing.T, register string) string {
	t.Helper()
	var values []string
	const inOrder = "SELECT COALESCE(array_agg(value ORDER BY seq), '{}') FROM judged.effects WHERE register = $1"
	must(t, w.admin.QueryRow(t.Context(), inOrder, register).Scan(&values))
	return strings.Join(values, " ")
}

// worker is a program on one surface, whose choices depend on the seed.
func (w *world) worker(t *testing.T, name string, seed uint64) *worker {
	t.Helper()
	cfg := w.cfg
	cfg.Seed, cfg.Dir, cfg.Surfaces, cfg.History = seed, t.TempDir(), []string{name}, filepath.Join(t.TempDir(), "history")
	p, err := start(cfg, nil)
	must(t, err)
	t.Cleanup(func() { must(t, p.close()) })
	return &worker{round: &round{process: p, stop: make(chan struct{})}, dice: newDice(seed, 1)}
}

// takes acquires a new resource, or two if the surface can hold several.
func (w *worker) takes(t *testing.T, on *world) *lease {
	t.Helper()
	s := w.surfaces[w.cfg.Surfaces[0]]
	w.resources = []string{on.resource(t)}
	if s.several { // against the order of their names, and with other tokens
		w.resources = []string{on.resource(t), w.resources[0]}
		on.revoke(t, &lease{holding: holding{term: &term{grants: []fence.Grant{{Resource: w.resources[0]}}}}})
	}
	return w.takesAgain(t, on)
}

func (w *worker) takesAgain(t *testing.T, on *world) *lease {
	t.Helper()
	s := w.surfaces[w.cfg.Surfaces[0]]
	all := w.resources
	if !s.several {
		all = w.resourcesFor(s, all[0])
	}
	l, op := w.acquire(t.Context(), s, ask{resources: all, ttl: stackTTL}, time.Minute)
	if op.Outcome != history.Done {
		t.Fatalf("%+v", op)
	}
	for _, g := range l.grants {
		var fenced int64
		must(t, on.admin.QueryRow(t.Context(), "SELECT token FROM fence.resources WHERE resource = $1", g.Resource).Scan(&fenced))
		if int64(g.Token) != fenced {
			t.Errorf("the token of %s is %d, and its fence stands at %d", g.Resource, g.Token, fenced)
		}
	}
	t.Cleanup(l.forget)
	return l
}

// writes writes an id, with a pause and with the program's dice, or the simplest choices.
func (l *lease) writes(ctx context.Context, id string, dice *dice, pause func(context.Context)) (history.Outcome, error) {
	if pause == nil {
		pause = func(context.Context) {}
	}
	this := write{pause: pause, nap: func() time.Duration { return 0 }, dice: dice, noted: func(int64, setting, string) {}}
	for _, r := range l.all() {
		this.set = append(this.set, setting{r.register, id, r.grant})
	}
	err := l.access.write(ctx, this)
	var op history.Op
	(&worker{}).setOutcome(&op, err)
	return op.Outcome, err
}

// all are the registers of the lease.
func (l *lease) all() (all []setting) {
	for _, g := range l.grants {
		for _, r := range l.surface.registers(g) {
			all = append(all, setting{r, "", g})
		}
	}
	return all
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
