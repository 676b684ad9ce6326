package main

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

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
	if err := l.Init(t.Context()); err != nil {
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
