package client

import (
	"cmp"
	"context"
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
	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/internal/stack/stacktest"
	"github.com/fencegate/fencegate/internal/testenv"
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
	psql, err := exec.LookPath("psql")
	must(t, err)
	s := stacktest.New(t)
	pg := judged(t, s)
	nodes, err := s.Redis(t.Context(), 3)
	must(t, err)
	program, err := s.Program(t.Context())
	must(t, err)
	w := &world{cfg: Config{
		Number: 1, Workers: 2, MaxTTL: stackTTL, Redis: nodes.Addrs(), Prefix: "test",
		WriterURL: pg.As(stack.Writer), FenceURL: pg.As(stack.Gateway), Bucket: "robust", OnceBucket: "robust-once",
		Program: program, Python: cmp.Or(os.Getenv("ROBUSTNESS_PYTHON"), "python3"), PSQL: psql,
	}}
	w.admin, err = pg.Pool(t.Context())
	must(t, err)
	key := stack.NewMasterKey()
	for _, name := range []string{"gateway-1", "gateway-2"} {
		g := stacktest.Serve(t, s, stack.GatewayConfig{
			Name: name, URL: w.cfg.FenceURL, SQLURL: pg.As(stack.SQL), Redis: w.cfg.Redis, MasterKey: key,
			Flags: []string{"--redis-prefix", w.cfg.Prefix, "--max-ttl", stackTTL.String(), "--drain-timeout", "1s", "--bucket", w.cfg.Bucket + "=prefix:1"},
		})
		w.cfg.Gateways = append(w.cfg.Gateways, Gateway{API: "http://" + g.API, PGURL: at(t, w.cfg.WriterURL, g.PG), S3: "http://" + g.S3})
	}
	_, err = w.api(t).SetBucket(t.Context(), w.cfg.OnceBucket, wire.BucketRequest{Rule: "prefix:1", WriteOnce: "1h"})
	must(t, err)
	return w
}

// judged starts a PostgreSQL with the tables of a run's judge.
func judged(t *testing.T, s *stack.Stack) *stack.Postgres {
	t.Helper()
	effects, err := os.ReadFile(filepath.Join("..", "judge", "effects.sql"))
	must(t, err)
	return stacktest.Postgres(t, s, stack.PostgresConfig{Database: stack.Database{Then: []string{string(effects)}}})
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
	for op.Code == "lease_lost" { // a request that http-repeat did not wait for acquired, and its lease is over: a new key is needed
		l, op = w.acquire(t.Context(), s, ask{resources: all, ttl: stackTTL}, time.Minute)
	}
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
