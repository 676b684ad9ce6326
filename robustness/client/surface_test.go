package client

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/robustness/history"
)

func TestMain(m *testing.M) { testenv.VerifyMain(m) }

// stackTTL is the longest lease of a stack.
const stackTTL = 30 * time.Second

// newStack is an s3World with three Redis nodes and a gateway.
func newStack(t *testing.T) *s3World {
	t.Helper()
	w := newS3World(t)
	server := strings.TrimPrefix(strings.TrimSuffix(w.cfg.WriterURL, "/postgres?sslmode=disable"), "postgres://client@")
	login := func(role, addr string) string { return "postgres://" + role + "@" + addr + "/postgres?sslmode=disable" }
	for range 3 {
		addr := w.addr()
		w.start(child.Spec{Path: "/usr/bin/redis-server", Args: []string{"--port", port(addr), "--save", "", "--dir", w.dir}})
		w.cfg.Redis = append(w.cfg.Redis, addr)
	}
	api, pg := w.addr(), w.addr()
	w.start(child.Spec{
		Path: w.cfg.Program,
		Args: []string{
			"serve", "--redis", strings.Join(w.cfg.Redis, ","), "--redis-prefix", lock.DefaultKeyPrefix, "--init", "--master-key-file",
			w.dir + "/master", "--api-listen", api,
			"--pg-listen", pg, "--max-ttl", stackTTL.String(),
			"--drain-timeout", "1s", "--node-timeout", "2s",
		},
		Env: append(os.Environ(), "FENCEGATE_POSTGRES_URL="+login("gateway", server),
			"FENCEGATE_SQL_URL="+login("for_sql", server)),
	})
	w.cfg.Gateways = []Gateway{{API: "http://" + api, PGURL: login("client", pg)}}
	w.cfg.FenceURL, w.cfg.Prefix = login("gateway", server), lock.DefaultKeyPrefix
	w.cfg.MaxTTL, w.cfg.Workers = stackTTL, 2
	w.cfg.PSQL, _ = exec.LookPath("psql")
	c := w.api(t)
	w.eventually(func(ctx context.Context) error {
		lease, err := c.Acquire(ctx, client.AcquireRequest{Resource: "ready", TTL: time.Second})
		if err != nil {
			return err
		}
		return c.Release(ctx, lease.Handle)
	})
	return w
}

// sqlSurfaces are those that only read and write a row.
var sqlSurfaces = []string{"library", "http-port", "http-direct", "http-sql", "run-psql"}

// freely is a write whose choices depend on dice.
func freely(id string, d *dice) write {
	w := to(id, nil)
	w.chance, w.noted = d.chance, func(int64, string, string) {}
	return w
}

func TestEachSQLSurfaceWritesUnderItsLeaseOnly(t *testing.T) {
	t.Parallel()
	world := newStack(t)
	for _, name := range sqlSurfaces {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(4) {
				writesUnderItsLeaseOnly(t, world, name, seed)
			}
		})
	}
}

func writesUnderItsLeaseOnly(t *testing.T, world *s3World, name string, seed uint64) {
	t.Helper()
	s, resource, d, ctx := world.surface(t, name, seed), world.resource(t), newDice(seed, 1), bounded(t)
	first := acquire(t, s, resource)
	register := s.registers(resource)[0]
	if saw, wrong, err := first.read(ctx, register); saw != "" || wrong != "" || err != nil {
		t.Fatalf("%d: read %q %q: %v", seed, saw, wrong, err)
	}
	want := []string{"", "a", "b"}
	for _, id := range want[1:] {
		if err := first.write(ctx, freely(id, d)); err != nil {
			t.Fatalf("%d: %v", seed, err)
		}
		if saw, _, err := first.read(ctx, register); saw != id || err != nil {
			t.Fatalf("%d: read %q: %v", seed, saw, err)
		}
	}
	if first.token() == 0 {
		t.Error("no token")
	}
	_, err := s.acquire(ctx, ask{id: "b", resource: resource, ttl: time.Second, try: true})
	if outcome, code := outcomeOf(err); outcome != history.Refused || code != "held" {
		t.Errorf("%d: a held resource is answered %s %s: %v", seed, outcome, code, err)
	}
	world.revoke(t, resource)
	err = first.write(ctx, freely("stale", d))
	if outcome, code := outcomeOf(err); outcome == history.Done || outcome == history.Refused && code != "ZF001" {
		t.Errorf("%d: a stale write is answered %s %s: %v", seed, outcome, code, err)
	}
	first.forget()
	second := acquire(t, s, resource)
	if second.token() <= first.token() {
		t.Errorf("%d: token %d after %d", seed, second.token(), first.token())
	}
	if saw, _, err := second.read(ctx, register); saw != "b" || err != nil {
		t.Errorf("%d: read %q: %v", seed, saw, err)
	}
	if err := second.write(ctx, freely("c", d)); err != nil {
		t.Errorf("%d: %v", seed, err)
	}
	err = second.release(ctx)
	if outcome, _ := outcomeOf(err); outcome != history.Done {
		t.Errorf("%d: %s: %v", seed, outcome, err)
	}
	if got := world.effects(t, register); strings.Join(got, " ") != "a b c" {
		t.Errorf("%d: effects %q", seed, got)
	}
}

// revoke revokes the resource's lease, as an operator does.
func (w *s3World) revoke(t *testing.T, resource string) {
	t.Helper()
	if _, err := w.api(t).Revoke(bounded(t), resource, "test"); err != nil {
		t.Fatal(err)
	}
}

func TestWhatAClientRecordsIsWhatHappenedWhileSessionsAreEnded(t *testing.T) {
	t.Parallel()
	world := newStack(t)
	cfg := world.cfg
	cfg.Surfaces, cfg.Workers, cfg.MaxTTL = sqlSurfaces, 6, stackTTL
	cfg.History, cfg.Dir = filepath.Join(t.TempDir(), "history"), t.TempDir()
	order := Order{Do: Work, Round: 1}
	for range 8 {
		order.Resources = append(order.Resources, world.resource(t))
	}
	p, err := start(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.obey(t.Context(), order)
	world.worked(t, cfg)
	report := p.obey(t.Context(), Order{Do: Rest})
	if err := p.close(); err != nil {
		t.Fatal(err)
	}
	ops, err := (&history.Reader{Path: cfg.History}).Next()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", report)
	agree(t, world, ops, order.Resources)
}

const endOne = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE usename IN ('client', 'for_sql', 'gateway') ORDER BY random() LIMIT 1`

// worked waits until each surface has written several times, and ends a PostgreSQL session after every second write:
// the work is the faults' clock, so that a slow machine has no more of them for each write than a fast one.
func (w *s3World) worked(t *testing.T, cfg Config) {
	t.Helper()
	r, wrote, writes, ended, ctx := &history.Reader{Path: cfg.History}, map[string]int{}, 0, 0, bounded(t)
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		more, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range more {
			if op.Action == history.Write && op.Outcome == history.Done {
				wrote[op.Surface]++
				writes++
			}
		}
		enough := true
		for _, name := range cfg.Surfaces {
			enough = enough && wrote[name] >= 3
		}
		if enough {
			t.Logf("written: %v; %d sessions ended", wrote, ended)
			return
		}
		for ; ended < writes/2; ended++ {
			w.exec(t, endOne)
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatalf("written so far: %v; %d sessions ended", wrote, ended)
		}
	}
}

// agree compares a history with the order of effects.
func agree(t *testing.T, world *s3World, ops []history.Op, resources []string) {
	t.Helper()
	all, err := world.admin.Query(t.Context(),
		"SELECT register, value, overwrote, token FROM judged.effects WHERE resource = ANY($1) ORDER BY seq", resources)
	if err != nil {
		t.Fatal(err)
	}
	type effect struct {
		Register, Value, Overwrote string
		Token                      int64
	}
	effects, err := pgx.CollectRows(all, pgx.RowToStructByPos[effect])
	if err != nil {
		t.Fatal(err)
	}
	done := map[string]effect{}
	for _, e := range effects {
		if _, twice := done[e.Value]; twice {
			t.Errorf("%s was done twice", e.Value)
		}
		done[e.Value] = e
	}
	for _, op := range history.Last(ops) {
		e, ok := done[op.ID]
		switch {
		case op.Action != history.Write:
		case ok && (op.Based[e.Register] != e.Overwrote || op.Token != e.Token):
			t.Errorf("%+v was done on %q under %d", op, e.Overwrote, e.Token)
		case ok != (op.Outcome == history.Done) && op.Outcome != history.Unknown:
			t.Errorf("done is %v of %+v", ok, op)
		}
		if op.Wrong != "" {
			t.Errorf("%+v", op)
		}
	}
}

// exec executes a statement as the superuser.
func (w *s3World) exec(t *testing.T, sql string) {
	t.Helper()
	if _, err := w.admin.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}
