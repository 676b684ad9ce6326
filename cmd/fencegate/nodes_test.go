package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

func TestALostNodeIsSeenAndAdmittedFromTheCommandLine(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	server := testenv.OwnRedis(t, 1)[0]
	prefix, err := pgfence.KeyPrefix(testenv.PoolOf(t, pg.GatewayURL))(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l, err := lock.New(lock.Config{Nodes: []lock.Node{{Addr: server.Addr}}, KeyPrefix: lock.Prefix(prefix), NodeTimeout: 20 * time.Second, MaxTTL: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := admin.Of(l).Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	vars := map[string]string{"FENCEGATE_REDIS": server.Addr, "FENCEGATE_POSTGRES_URL": pg.GatewayURL}
	status := func(want int) shownNode {
		t.Helper()
		code, out, stderr := cli(t, vars, "nodes", "status")
		var nodes []shownNode
		if err := json.Unmarshal([]byte(out), &nodes); err != nil || code != want || len(nodes) != 1 || nodes[0].Name != server.Addr {
			t.Fatalf("code %d, %q, %q; want %d and one node", code, out, stderr, want)
		}
		return nodes[0]
	}
	if st := status(exitOK); !st.Admitted || st.Error != nil || st.MaxTTLMS != 5000 {
		t.Errorf("%+v", st)
	}
	before := tokenOf(t, l, "r")
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := status(exitUnavailable); st.Admitted || st.Error != nil {
		t.Errorf("%+v", st)
	}
	if code, _, stderr := cli(t, vars, "nodes", "admit", "elsewhere:6379"); code == exitOK || !strings.Contains(stderr, "not in this group") {
		t.Errorf("a stranger: %d %q", code, stderr)
	}
	for _, want := range []string{"is admitted, after", "is admitted already"} {
		code, _, stderr := cli(t, vars, "nodes", "admit", server.Addr)
		if code != exitOK || !strings.Contains(stderr, want) {
			t.Fatalf("admit: %d %q; want %q", code, stderr, want)
		}
	}
	if st := status(exitOK); !st.Admitted || st.Epoch == 0 {
		t.Errorf("%+v", st)
	}
	if after := tokenOf(t, l, "r"); after <= before {
		t.Errorf("token %d after %d", after, before)
	}
}

// tokenOf acquires a free resource.
func tokenOf(t *testing.T, l *lock.Locker, resource string) fence.Token {
	t.Helper()
	lease, err := l.TryAcquire(t.Context(), resource)
	if err != nil {
		t.Fatal(err)
	}
	return lease.Ref().Token
}

func TestLocksThatNeverEndAreListed(t *testing.T) {
	t.Parallel()
	nodes := testenv.Redis(t, 1)
	cfg := lock.Config{Nodes: []lock.Node{{Addr: nodes.Addrs[0]}}, KeyPrefix: lock.Prefix(nodes.Prefix), NodeTimeout: 20 * time.Second}
	l, err := lock.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := admin.Of(l).Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.TryAcquire(t.Context(), "leaky", lock.WithHolder("worker-a")); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--redis", nodes.Addrs[0], "--redis-prefix", nodes.Prefix}
	if code, out, _ := cli(t, nil, append([]string{"nodes", "leaks"}, flags...)...); code != exitOK || strings.TrimSpace(out) != "[]" {
		t.Errorf("none: %d %q", code, out)
	}
	c := redis.NewClient(&redis.Options{Addr: nodes.Addrs[0]})
	t.Cleanup(func() { _ = c.Close() })
	if err := c.Persist(t.Context(), nodes.Prefix+":lock:leaky").Err(); err != nil {
		t.Fatal(err)
	}
	code, out, _ := cli(t, nil, append([]string{"nodes", "leaks"}, flags...)...)
	if code != exitFailed || !strings.Contains(out, `"resource": "leaky"`) || !strings.Contains(out, `"holder": "worker-a"`) {
		t.Errorf("one: %d %q", code, out)
	}
	code, out, _ = cli(t, nil, append([]string{"nodes", "sweep"}, flags...)...)
	if code != exitOK || !strings.Contains(out, `"deleted": 1`) {
		t.Errorf("sweep: %d %q", code, out)
	}
}

// PostgreSQL allocates the epoch that a sweep starts.
func TestASweepTakesItsEpochFromPostgreSQL(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	nodes := testenv.Redis(t, 1)
	store := pgfence.New(testenv.PoolOf(t, pg.GatewayURL))
	l, err := lock.New(lock.Config{Nodes: []lock.Node{{Addr: nodes.Addrs[0]}}, KeyPrefix: lock.Prefix(nodes.Prefix), NodeTimeout: 20 * time.Second, Epochs: store})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := admin.Of(l).Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(&redis.Options{Addr: nodes.Addrs[0]})
	t.Cleanup(func() { _ = c.Close() })
	before := admin.Of(l).Status(t.Context())[0].Epoch
	if err := c.HSet(t.Context(), nodes.Prefix+":h", "c:r", before<<32+1<<31+5).Err(); err != nil {
		t.Fatal(err)
	}
	vars := map[string]string{"FENCEGATE_POSTGRES_URL": pg.GatewayURL}
	code, out, stderr := cli(t, vars, "nodes", "sweep", "--redis", nodes.Addrs[0], "--redis-prefix", nodes.Prefix)
	if code != exitOK || !strings.Contains(out, `"deleted": 1`) {
		t.Errorf("sweep: %d %q %q", code, out, stderr)
	}
	swept := admin.Of(l).Status(t.Context())[0].Epoch
	next, err := store.RaiseEpoch(t.Context(), 0)
	if err != nil || swept != before+1 || next <= swept {
		t.Errorf("epoch %d, %d after the sweep, then %d: %v", before, swept, next, err)
	}
}

// The Redis client by itself writes to standard error, in its own format.
func TestANodeThatIsAwayIsToldOnce(t *testing.T) {
	t.Parallel()
	away := testenv.DeadAddr(t)
	var out, errs strings.Builder
	cmd := command(t, openTempDir(t), "nodes", "status", "--redis", away, "--redis-prefix", "fencegate")
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != exitUnavailable || !strings.Contains(out.String(), "connection refused") {
		t.Errorf("exit code %d, %q", code, out.String())
	}
	if strings.Contains(errs.String(), "redis:") || strings.Count(errs.String(), "\n") > 2 {
		t.Errorf("standard error: %q", errs.String())
	}
}

// A new group of a database is admitted once, with its longest TTL, which changes while it is in use.
func TestAGroupIsInitialisedAndItsMaxTTLChangedFromTheCommandLine(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	server := testenv.OwnRedis(t, 1)[0]
	vars := map[string]string{"FENCEGATE_REDIS": server.Addr, "FENCEGATE_POSTGRES_URL": pg.GatewayURL}
	run := func(wantCode int, wantText string, args ...string) {
		t.Helper()
		code, stdout, stderr := cli(t, vars, append([]string{"nodes"}, args...)...)
		if code != wantCode || !strings.Contains(stdout+stderr, wantText) {
			t.Errorf("%q: %d %q %q; want %d and %q", args, code, stdout, stderr, wantCode, wantText)
		}
	}
	run(exitUsage, "--above is for a group without PostgreSQL", "init", "--above", "5")
	run(exitUnavailable, "not admitted", "max-ttl", "2s")
	run(exitOK, server.Addr+" is admitted, after", "init", "--max-ttl", "3s")
	run(exitOK, "the nodes are admitted already", "init")
	run(exitUsage, "fencegate nodes max-ttl 4s", "init", "--max-ttl", "4s")
	run(exitOK, `"max_ttl_ms": 3000`, "status")
	run(exitOK, "the nodes grant leases of up to 5s", "max-ttl", "5s")
	begun := time.Now()
	run(exitOK, "waiting for up to 5s", "max-ttl", "2s")
	if took := time.Since(begun); took < 5*time.Second {
		t.Errorf("lowered after %v", took)
	}
	run(exitOK, `"max_ttl_ms": 2000`, "status")
	run(exitUsage, "not a duration", "max-ttl", "soon")
	run(exitUsage, "allowed is", "max-ttl", "25h")
}

func TestAGroupWithoutPostgreSQLGoesOnFromTheCommandLine(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, 1)[0]
	l, err := lock.New(lock.Config{Nodes: []lock.Node{{Addr: server.Addr}}, NodeTimeout: 20 * time.Second, MaxTTL: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := admin.Of(l).Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	tokenOf(t, l, "r")
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := cli(t, nil, "nodes", "admit", server.Addr, "--redis", server.Addr, "--redis-prefix", "fencegate")
	if code != exitUnavailable || !strings.Contains(stderr, "nodes init --above TOKEN") {
		t.Errorf("admit: %d %q", code, stderr)
	}
	above := func(flags ...string) (int, string) {
		code, _, stderr := cli(t, nil, append([]string{"nodes", "init", "--redis", server.Addr, "--max-ttl", "5s"}, flags...)...)
		return code, stderr
	}
	for want, flags := range map[string][]string{
		"with --redis-prefix":                                {"--above", "5"},
		"above is 0; it must be positive":                    {"--redis-prefix", "fencegate", "--above", "0"},
		"above is 9007199254740992; it must be positive and": {"--redis-prefix", "fencegate", "--above", "9007199254740992"},
	} {
		if code, stderr := above(flags...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%q: %d %q; want %q", flags, code, stderr, want)
		}
	}
	c := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = c.Close() })
	if keys := c.Keys(t.Context(), "*").Val(); len(keys) > 0 {
		t.Errorf("a refused one left %q", keys)
	}
	begun := time.Now()
	code, stderr = above("--redis-prefix", "fencegate", "--above", "77")
	if code != exitOK || !strings.Contains(stderr, server.Addr+" is admitted, after") || time.Since(begun) < 5*time.Second {
		t.Fatalf("init: %d %q, after %v", code, stderr, time.Since(begun))
	}
	if after := tokenOf(t, l, "r"); after <= 77 {
		t.Errorf("token %d after 77", after)
	}
	if code, stderr := above("--redis-prefix", "fencegate", "--above", "4294967400"); code != exitUsage || !strings.Contains(stderr, "know the epoch") {
		t.Errorf("once more: %d %q", code, stderr)
	}
}

func TestNodesAreMarkedForAModeFromTheCommandLine(t *testing.T) {
	t.Parallel()
	nodes := testenv.Redis(t, 1)
	flags := []string{"--redis", nodes.Addrs[0], "--redis-prefix", nodes.Prefix}
	run := func(args ...string) (int, string) {
		t.Helper()
		code, out, stderr := cli(t, nil, append(append([]string{"nodes"}, args...), flags...)...)
		return code, out + stderr
	}
	if code, said := run("mode", "best-effort"); code != exitUnavailable || !strings.Contains(said, "no node was admitted yet") {
		t.Errorf("new nodes: %d %q", code, said)
	}
	l, err := lock.New(lock.Config{Nodes: []lock.Node{{Addr: nodes.Addrs[0]}}, KeyPrefix: lock.Prefix(nodes.Prefix), NodeTimeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := admin.Of(l).Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code, said := run("status"); code != exitOK || !strings.Contains(said, `"best_effort": false`) {
		t.Errorf("before: %d %q", code, said)
	}
	if code, said := run("mode", "loose"); code != exitUsage {
		t.Errorf("another word: %d %q", code, said)
	}
	for mode, shown := range map[string]string{"best-effort": `"best_effort": true`, "strict": `"best_effort": false`} {
		if code, said := run("mode", mode); code != exitOK || !strings.Contains(said, "marked "+mode) {
			t.Errorf("%s: %d %q", mode, code, said)
		}
		if code, said := run("status"); code == exitUsage || !strings.Contains(said, shown) {
			t.Errorf("%s: %d %q", mode, code, said)
		}
	}
}
