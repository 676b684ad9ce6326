//go:build unix

package gateway_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// pair is a primary that can return, and a standby that streams from it, each behind an address of its own.
type pair struct {
	t                *testing.T
	dir              string // the primary's
	primary, standby *pgserver.Server
	first, second    *address
}

func startPair(t *testing.T) *pair {
	t.Helper()
	made := startCluster(t)
	p := &pair{t: t, dir: testenv.ServerDir(t)}
	if err := made.CopyTo(t.Context(), p.dir, false); err != nil {
		t.Fatal(err)
	}
	if err := made.Kill(); err != nil {
		t.Fatal(err)
	}
	p.primary = run(t, p.dir)
	dir := testenv.ServerDir(t)
	if err := p.primary.CopyTo(t.Context(), dir, true); err != nil {
		t.Fatal(err)
	}
	p.standby = run(t, dir)
	p.first, p.second = newAddress(t, p.primary.Addr()), newAddress(t, p.standby.Addr())
	return p
}

// both returns the address of the two hosts for a login.
func (p *pair) both(login, options string) string {
	hosts := p.first.ln.Addr().String() + "," + p.second.ln.Addr().String()
	u := url.URL{Scheme: "postgres", User: url.UserPassword(login, login), Host: hosts, Path: "/postgres", RawQuery: "sslmode=disable" + options}
	return u.String()
}

func (p *pair) gateway(options string) gateway.Config {
	cfg := config(p.t, testenv.PG{GatewayURL: p.both("gate", options), WriterURL: p.both("writer", options)})
	cfg.S3Listen, cfg.Buckets, cfg.BlobDir = "", nil, ""
	return cfg
}

// writer returns the address for sessions through the port.
func (p *pair) writer() testenv.PG {
	return testenv.PG{WriterURL: "postgres://writer:writer@127.0.0.1/postgres?sslmode=disable"}
}

// promote promotes the standby once it has the token.
func (p *pair) promote(l lease) {
	p.t.Helper()
	untilSays(p.t, p.standby, `SELECT count(*) FROM fence.resources WHERE resource = '`+l.resource+`' AND token = `+l.token, "1")
	execOn(p.t, p.standby, `SELECT pg_promote()`)
	untilSays(p.t, p.standby, `SELECT pg_is_in_recovery()`, "false")
}

// servedAt returns the port of the server that a session has reached.
func servedAt(t *testing.T, conn *pgx.Conn) (port string) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), "SHOW port").Scan(&port); err != nil {
		t.Fatal(err)
	}
	return port
}

func portIn(s *pgserver.Server) string { _, port, _ := strings.Cut(s.Addr(), ":"); return port }

func TestSessionsGoWhereTheFenceIs(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]string{"any": "", "read-write": "&target_session_attrs=read-write"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startPair(t)
			cfg := p.gateway(options)
			c := start(t, cfg)
			a := c.acquire("orders/1001", "60s")
			if err := p.primary.Kill(); err != nil {
				t.Fatal(err)
			}
			p.first.moveTo("127.0.0.1:1")
			p.promote(a)
			untilAnswered(c, func(a answer) bool {
				return strings.HasSuffix(a.text("detail"), "fencegate fence invalidate-all --yes")
			})
			execOn(t, p.standby, `SELECT raised FROM fence.invalidate_all()`)
			untilReady(c)
			c.acquire("orders/2", "60s")

			// The old primary is back, and takes writes.
			p.first.moveTo(run(p.t, p.dir).Addr())
			late := start(t, cfg)
			for i, gateway := range []*client{c, late} {
				name := []string{"the first", "a late one"}[i]
				untilReady(gateway)
				l := gateway.acquire(fmt.Sprint("orders/1", i), "60s")
				if armed := execOn(t, p.standby, `SELECT count(*)::text FROM fence.resources WHERE resource = $1`, l.resource); armed != "1" {
					t.Errorf("%s: the lease was not armed on the promoted server", name)
				}
				conn, err := gateway.login(t.Context(), p.writer(), "-c fence.resource="+l.resource+" -c fence.token="+l.grant)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if port := servedAt(t, conn); port != portIn(p.standby) {
					t.Errorf("%s: its sessions go to port %s; want that of the promoted server, %s", name, port, portIn(p.standby))
				}
				a := gateway.want(http.StatusOK, "POST", "/v1/sql", map[string]any{"statements": []any{map[string]string{"sql": "SHOW port"}}}, "Fencing-Resource", l.resource, "Fencing-Token", l.grant)
				if rows := fmt.Sprint(a.Body["results"]); !strings.Contains(rows, "["+portIn(p.standby)+"]") {
					t.Errorf("%s: /v1/sql goes to %v", name, rows)
				}
			}
		})
	}
}

// While PostgreSQL may have forgotten fences, no earlier grant passes, not even before the gateway has noticed.
func TestNoGrantOfBeforePassesWhereFencesMayBeForgotten(t *testing.T) {
	t.Parallel()
	p := startPair(t)
	cfg := p.gateway("")
	cfg.PostgresURL, cfg.SQLURL = strings.Replace(cfg.PostgresURL, ","+p.second.ln.Addr().String(), "", 1), "" // an address that moves
	cfg.PG.Rules = grantRequired
	c := start(t, cfg)
	a := c.acquire("orders/1001", "60s")
	present := func() (*pgx.Conn, error) {
		return c.login(t.Context(), p.writer(), "-c fence.resource=orders/1001 -c fence.token="+a.grant)
	}
	if _, err := present(); err != nil {
		t.Fatal(err)
	}
	p.promote(a)
	p.first.moveTo(p.standby.Addr())
	for range 3 {
		_, err := present()
		if refused := fatal(err); refused.Code != "57P03" || !strings.Contains(refused.Message, "grants can't be checked now") {
			t.Errorf("where fences may be forgotten: %v; want 57P03", err)
		}
	}
	testenv.Eventually(t, "a client learns what to do", func() bool {
		_, err := present()
		return strings.HasSuffix(fatal(err).Message, "fencegate fence invalidate-all --yes")
	})
	execOn(t, p.standby, `SELECT raised FROM fence.invalidate_all()`)
	untilReady(c)
	if _, err := present(); fatal(err).Code != "ZF001" {
		t.Errorf("after the invalidation: %v; want ZF001", err)
	}
	next := c.acquire("orders/2", "60s")
	if _, err := c.login(t.Context(), p.writer(), "-c fence.resource=orders/2 -c fence.token="+next.grant); err != nil {
		t.Errorf("a grant of now: %v", err)
	}
}

// The same holds for writes by /v1/sql and the S3 port.
func TestNoWriteOfBeforePassesWhereFencesMayBeForgotten(t *testing.T) {
	t.Parallel()
	p := startPair(t)
	cfg := config(t, testenv.PG{GatewayURL: p.both("gate", ""), WriterURL: p.both("writer", "")})
	second := "," + p.second.ln.Addr().String()
	cfg.PostgresURL, cfg.SQLURL = strings.Replace(cfg.PostgresURL, second, "", 1), strings.Replace(cfg.SQLURL, second, "", 1) // an address that moves
	c := start(t, cfg)
	a := c.acquire("orders/1001", "60s")
	creds := c.want(http.StatusOK, "POST", "/v1/leases/credentials", map[string]string{"handle": a.handle})
	update := func() answer {
		return c.do("POST", "/v1/sql", map[string]any{"statements": []any{map[string]string{"sql": strings.Replace(updateOrder, "$1", "'x'", 1)}}},
			"Fencing-Resource", "orders/1001", "Fencing-Token", a.grant)
	}
	if got := update(); got.Status != http.StatusOK {
		t.Fatalf("before: %d %v", got.Status, got.Body)
	}
	if err := c.put(creds, "1001/a", "before"); err != nil {
		t.Fatal(err)
	}
	p.promote(a)
	p.first.moveTo(p.standby.Addr())
	for range 3 {
		if got := update(); got.Status != http.StatusServiceUnavailable || got.text("part") != "postgresql" {
			t.Errorf("/v1/sql where fences may be forgotten: %d %v; want 503", got.Status, got.Body)
		}
		if err := c.put(creds, "1001/a", "late"); err == nil || !strings.Contains(err.Error(), "ServiceUnavailable") {
			t.Errorf("PutObject where fences may be forgotten: %v; want ServiceUnavailable", err)
		}
	}
	testenv.Eventually(t, "a client learns what to do", func() bool {
		return strings.HasSuffix(update().text("detail"), "fencegate fence invalidate-all --yes")
	})
	if note := execOn(t, p.standby, `SELECT count(*)::text FROM objects.versions`); note != "1" {
		t.Errorf("%s versions; want 1", note)
	}
	execOn(t, p.standby, `SELECT raised FROM fence.invalidate_all()`)
	untilReady(c)
	if got := update(); got.text("code") != "ZF001" {
		t.Errorf("/v1/sql after the invalidation: %v; want ZF001", got.Body)
	}
	if err := c.put(creds, "1001/a", "late"); err == nil || !strings.Contains(err.Error(), "StaleFencingToken") {
		t.Errorf("PutObject after the invalidation: %v; want StaleFencingToken", err)
	}
	next := c.acquire("orders/2", "60s")
	creds = c.want(http.StatusOK, "POST", "/v1/leases/credentials", map[string]string{"handle": next.handle})
	if err := c.put(creds, "2/a", "now"); err != nil {
		t.Errorf("under a grant of now: %v", err)
	}
}

// The fence does not need Redis: a client with a grant can write while the nodes are away.
func TestWithoutARedisQuorumGrantsAreJudgedAllTheSame(t *testing.T) {
	t.Parallel()
	p, nodes := startPair(t), testenv.OwnRedis(t, 3)
	cfg := p.gateway("")
	cfg.PG.Rules, cfg.RedisNodes, cfg.NodeTimeout = grantRequired, nil, 2*time.Second
	for _, n := range nodes {
		cfg.RedisNodes = append(cfg.RedisNodes, lock.Node{Addr: n.Addr})
	}
	c := start(t, cfg)
	l := c.acquire("orders/1001", "60s")
	for _, n := range nodes[:2] {
		if err := n.Freeze(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = n.Thaw() })
	}
	for range 3 { // each makes the gateway ask the nodes
		untilAnswered(c, func(a answer) bool { return a.text("part") == "redis" })
		conn, err := c.login(t.Context(), p.writer(), "-c fence.resource=orders/1001 -c fence.token="+l.grant)
		if err != nil {
			t.Fatalf("while the nodes are away: %v", err)
		}
		if _, err := conn.Exec(t.Context(), updateOrder, "without redis"); err != nil {
			t.Error(err)
		}
	}
}

// Another gateway cannot reach the primary, and an operator has promoted the standby: two servers accept writes.
func TestSessionsOfTheServerThatIsNotPostgreSQLAnyMoreEnd(t *testing.T) {
	t.Parallel()
	p := startPair(t)
	cfg := p.gateway("")
	c := start(t, cfg)
	a := c.acquire("orders/1001", "60s")
	conn, err := c.login(t.Context(), p.writer(), "")
	if err != nil {
		t.Fatal(err)
	}
	if port := servedAt(t, conn); port != portIn(p.primary) {
		t.Fatalf("a session at port %s", port)
	}
	p.promote(a)
	execOn(t, p.standby, `SELECT raised FROM fence.invalidate_all()`)
	elsewhere := cfg
	elsewhere.PostgresURL, elsewhere.SQLURL = strings.Replace(cfg.PostgresURL, p.first.ln.Addr().String()+",", "", 1), ""
	beside := start(t, elsewhere)
	untilReady(beside)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = conn.Exec(ctx, "SELECT pg_sleep(60)")
	if refused := fatal(err); refused.Code != "57P01" || !strings.Contains(refused.Message, "the gateway now uses another PostgreSQL server") {
		t.Errorf("the session on the old primary: %v; want 57P01", err)
	}
	untilReady(c)
	conn, err = c.login(t.Context(), p.writer(), "")
	if err != nil {
		t.Fatal(err)
	}
	if port := servedAt(t, conn); port != portIn(p.standby) {
		t.Errorf("a new session goes to port %s; want %s", port, portIn(p.standby))
	}
}
