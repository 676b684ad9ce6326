//go:build unix

package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// sharing configures a gateway with leases only, on nodes shared by several databases, as serve does by default.
func sharing(t *testing.T, postgres string, nodes []*redisserver.Server) gateway.Config {
	t.Helper()
	cfg := config(t, testenv.PG{GatewayURL: postgres})
	cfg.RedisNodes, cfg.KeyPrefix, cfg.DatabaseKeys = nil, "", true
	cfg.SQLURL, cfg.PGListen, cfg.S3Listen, cfg.BlobDir, cfg.Buckets = "", "", "", "", nil
	for _, n := range nodes {
		cfg.RedisNodes = append(cfg.RedisNodes, lock.Node{Addr: n.Addr})
	}
	return cfg
}

func ownPrefix(t *testing.T, url string) string {
	t.Helper()
	prefix, err := pgfence.KeyPrefix(testenv.PoolOf(t, url))(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return prefix
}

// keysOn returns the names of all keys on a node.
func keysOn(t *testing.T, node *redisserver.Server) []string {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: node.Addr})
	defer func() { _ = c.Close() }()
	keys, err := c.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// Nodes that are asked for a lease before they are admitted look as if they had lost data, and then grant nothing for a
// minute.
func TestAGatewayLearnsItsKeysOncePostgreSQLIsThere(t *testing.T) {
	t.Parallel()
	pg, nodes := testenv.Postgres(t), testenv.OwnRedis(t, 1)
	u, err := url.Parse(pg.GatewayURL)
	if err != nil {
		t.Fatal(err)
	}
	at := newAddress(t, "")
	there := u.Host
	u.Host = at.ln.Addr().String()
	c := start(t, sharing(t, u.String(), nodes))
	for range 3 {
		a := c.want(http.StatusServiceUnavailable, "POST", "/v1/leases", map[string]string{"resource": "orders/1001", "ttl": "30s"})
		if a.text("part") != "postgresql" {
			t.Errorf("without PostgreSQL: %v", a.Body)
		}
	}
	if keys := keysOn(t, nodes[0]); len(keys) > 0 {
		t.Errorf("before the prefix is known there are %q", keys)
	}
	at.moveTo(there)
	untilReady(c)
	c.acquire("orders/1001", "30s")
	prefix := ownPrefix(t, pg.GatewayURL)
	keys := keysOn(t, nodes[0])
	for _, key := range keys {
		if !strings.HasPrefix(key, prefix+":") {
			t.Errorf("the key %q does not begin with %q", key, prefix)
		}
	}
	if len(keys) < 3 { // counters, a lock, and the record of PostgreSQL
		t.Errorf("keys: %q", keys)
	}
}

func TestSeveralDatabasesShareTheNodes(t *testing.T) {
	t.Parallel()
	nodes := testenv.OwnRedis(t, 3)
	one, other := testenv.Postgres(t), testenv.Postgres(t)
	first, second := start(t, sharing(t, one.GatewayURL, nodes)), start(t, sharing(t, other.GatewayURL, nodes))
	for _, c := range []*client{first, second} { // the same name is another resource
		c.acquire("orders/1001", "30s")
	}
	for _, c := range []*client{first, second, start(t, sharing(t, one.GatewayURL, nodes))} {
		untilReady(c)
		c.want(http.StatusConflict, "POST", "/v1/leases", map[string]string{"resource": "orders/1001", "ttl": "30s"})
	}
}

// refusedBeside wants every lease refused for a reason with these words, and returns the reasons.
func refusedBeside(c *client, words ...string) string {
	c.t.Helper()
	all := func(a answer) bool {
		for _, word := range words {
			if !strings.Contains(a.text("detail"), word) {
				return false
			}
		}
		return a.Status == http.StatusServiceUnavailable
	}
	var detail string
	untilAnswered(c, func(a answer) bool {
		detail = a.text("detail")
		return all(a)
	})
	testenv.Eventually(c.t, "a lease is refused for that reason", func() error { // a node may answer too late for one
		a := c.want(http.StatusServiceUnavailable, "POST", "/v1/leases", map[string]string{"resource": "orders/3", "ttl": "30s"})
		if !all(a) {
			return fmt.Errorf("%q is missing in: %s", words, a.text("detail"))
		}
		detail += a.text("detail")
		return nil
	})
	return detail
}

func TestAnotherDatabaseUnderTheSameKeysIsNamedAndTheFirstGoesOn(t *testing.T) {
	t.Parallel()
	nodes := testenv.OwnRedis(t, 3)
	mine, theirs := sharing(t, testenv.Postgres(t).GatewayURL, nodes), sharing(t, testenv.Postgres(t).GatewayURL, nodes)
	for _, cfg := range []*gateway.Config{&mine, &theirs} {
		cfg.DatabaseKeys, cfg.KeyPrefix = false, "one"
	}
	first := start(t, mine)
	held := first.acquire("orders/1001", "60s")
	second := start(t, theirs)
	if said := refusedBeside(second, "are another database's", "one:*", "--redis-prefix"); strings.Contains(said, "invalidate") || strings.Contains(said, "--yes") {
		t.Errorf("destructive advice: %s", said)
	}
	untilReady(first)
	first.want(http.StatusOK, "POST", "/v1/leases/renew", map[string]string{"handle": held.handle, "ttl": "60s"})
	first.acquire("orders/3", "30s") // the refused ones hold no lock
}

func TestACopyOfADatabaseLeavesTheFirstOneAloneUntilItHasItsOwnKeys(t *testing.T) {
	t.Parallel()
	nodes, pg := testenv.OwnRedis(t, 3), testenv.Postgres(t)
	name := copyOf(t, pg)
	first := start(t, sharing(t, pg.GatewayURL, nodes))
	held := first.acquire("orders/1001", "60s")
	beside := sharing(t, inDatabase(t, pg.GatewayURL, name), nodes)
	second := start(t, beside)
	refusedBeside(second, "this database is a copy", "fencegate fence new-group --yes", "fencegate fence invalidate-all --yes")
	goesOn := func() {
		t.Helper()
		untilReady(first)
		first.want(http.StatusOK, "POST", "/v1/leases/renew", map[string]string{"handle": held.handle, "ttl": "60s"})
		l := first.acquire("orders/3", "30s")
		first.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.handle})
	}
	goesOn()

	copied, err := pgx.Connect(t.Context(), inDatabase(t, pg.URL, name))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = copied.Close(context.WithoutCancel(t.Context())) }()
	if _, err := copied.Exec(t.Context(), `SELECT fence.new_group()`); err != nil {
		t.Fatal(err)
	}
	refusedBeside(second, "given a new group", "start again")
	beside.MaxTTL = 2 * time.Second // also the quarantine of nodes that are new to a database with fences
	third := start(t, beside)
	untilReady(third)
	for c, want := range map[*client]bool{first: true, third: false} {
		if c.locked("orders/1001") != want {
			t.Errorf("orders/1001 is held: %t, want %t", !want, want)
		}
	}
	goesOn()
}

// copyOf copies a database and returns the copy's name.
func copyOf(t *testing.T, pg testenv.PG) string {
	t.Helper()
	admin, err := pgx.Connect(t.Context(), inDatabase(t, pg.URL, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(context.WithoutCancel(t.Context())) }()
	name := pg.Database + "_copy"
	if _, err := admin.Exec(t.Context(), "CREATE DATABASE "+name+" TEMPLATE "+pg.Database); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if conn, err := pgx.Connect(ctx, inDatabase(t, pg.URL, "postgres")); err == nil {
			_, _ = conn.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
			_ = conn.Close(ctx)
		}
	})
	return name
}

// A copy with another database's keys, and perhaps a shorter longest TTL, must not admit that database's nodes.
func TestTheGatewayOfACopyAdmitsNoNodeOfTheFirstDatabase(t *testing.T) {
	t.Parallel()
	nodes, pg := testenv.OwnRedis(t, 3), testenv.Postgres(t)
	name := copyOf(t, pg)
	first := start(t, sharing(t, pg.GatewayURL, nodes))
	first.acquire("orders/1001", "30s")
	if err := first.g.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(nodes[0].Kill(), nodes[0].Restart(t.Context())); err != nil {
		t.Fatal(err)
	}
	second := start(t, sharing(t, inDatabase(t, pg.GatewayURL, name), nodes))
	refusedBeside(second, "this database is a copy")
	// The gateway polls the nodes every two seconds.
	look, enough := time.NewTicker(100*time.Millisecond), time.After(5*time.Second)
	defer look.Stop()
	for {
		select {
		case <-look.C:
			if keys := keysOn(t, nodes[0]); len(keys) > 0 {
				t.Fatalf("the node has %q", keys)
			}
		case <-enough:
			untilReady(start(t, sharing(t, pg.GatewayURL, nodes)))
			return
		}
	}
}

// inDatabase returns the address of another database on the same server.
func inDatabase(t *testing.T, address, database string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + database
	return u.String()
}
