package main

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// The only node is parked and restarted, and needs no quarantine of five minutes.
func TestAParkedNodeIsAdmittedAtOnceFromTheCommandLine(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	server := testenv.OwnRedisWith(t, 1, redisserver.Config{AppendOnly: redisserver.Always})[0]
	pool := testenv.PoolOf(t, pg.GatewayURL)
	prefix, err := pgfence.KeyPrefix(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	l, err := lock.New(lock.Config{Nodes: []lock.Node{{Addr: server.Addr}}, KeyPrefix: prefix, NodeTimeout: 20 * time.Second, Epochs: pgfence.New(pool)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	testenv.Eventually(t, "the nodes are admitted", func() error { return l.Init(t.Context()) }) // a node may answer too late
	before := tokenOf(t, l, "r")
	vars := map[string]string{"FENCEGATE_REDIS": server.Addr, "FENCEGATE_POSTGRES_URL": pg.GatewayURL}
	if code, _, stderr := patiently(t, vars, "nodes", "park", server.Addr); code != exitOK || !strings.Contains(stderr, "is parked: restart its server") {
		t.Fatalf("park: %d %q", code, stderr)
	}
	if code, _, stderr := patiently(t, vars, "nodes", "park", server.Addr); code != exitUnavailable || !strings.Contains(stderr, "parked already") {
		t.Errorf("park again: %d %q", code, stderr)
	}
	if code, out, _ := patiently(t, vars, "nodes", "status"); code != exitUnavailable || !strings.Contains(out, `"parked": true`) {
		t.Errorf("status: %d %q", code, out)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	code, _, stderr := patiently(t, vars, "nodes", "admit", server.Addr)
	if passed := time.Since(begun); code != exitOK || passed > 20*time.Second { // less than the default TTL, too
		t.Fatalf("admit: %d %q, after %v", code, stderr, passed)
	}
	if after := tokenOf(t, l, "s"); after <= before {
		t.Errorf("token %d after %d", after, before)
	}
}

func TestAGroupWithoutPostgreSQLIsRecoveredFromTheCommandLine(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedis(t, 1)[0]
	l, err := lock.New(lock.Config{Nodes: []lock.Node{{Addr: server.Addr}}, NodeTimeout: 20 * time.Second, MaxTTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	testenv.Eventually(t, "the nodes are admitted", func() error { return l.Init(t.Context()) }) // a node may answer too late
	tokenOf(t, l, "r")
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	recovery := func(flags ...string) (int, string) {
		code, _, stderr := patiently(t, nil, append([]string{"nodes", "recover", "--redis", server.Addr, "--max-ttl", "1s"}, flags...)...)
		return code, stderr
	}
	for want, flags := range map[string][]string{
		"--above is missing":                                 {"--redis-prefix", "fencegate"},
		"--redis-prefix is missing":                          {"--above", "5"},
		"above is 0; it must be positive":                    {"--redis-prefix", "fencegate", "--above", "0"},
		"above is 9007199254740992; it must be positive and": {"--redis-prefix", "fencegate", "--above", "9007199254740992"},
	} {
		if code, stderr := recovery(flags...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%q: %d %q; want %q", flags, code, stderr, want)
		}
	}
	c := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { _ = c.Close() })
	if keys := c.Keys(t.Context(), "*").Val(); len(keys) > 0 {
		t.Errorf("a refused recovery left %q", keys)
	}
	begun := time.Now()
	code, stderr := recovery("--redis-prefix", "fencegate", "--above", "77")
	if code != exitOK || !strings.Contains(stderr, server.Addr+" is admitted, after") || time.Since(begun) < time.Second {
		t.Fatalf("recover: %d %q, after %v", code, stderr, time.Since(begun))
	}
	if after := tokenOf(t, l, "r"); after <= 77 {
		t.Errorf("token %d after 77", after)
	}
	if code, stderr := recovery("--redis-prefix", "fencegate", "--above", "4294967400"); code != exitUsage || !strings.Contains(stderr, "know the epoch") {
		t.Errorf("once more: %d %q", code, stderr)
	}
}
