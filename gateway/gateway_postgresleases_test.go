//go:build unix

package gateway_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/testenv"
)

// alone returns the configuration without Redis.
func alone(cfg gateway.Config) gateway.Config {
	cfg.RedisNodes, cfg.InitNodes, cfg.PostgresLeases = nil, false, true
	return cfg
}

func TestAGatewayNeedsNoRedis(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	guarded(t, pg)
	cfg := alone(config(t, pg))
	c, beside := start(t, cfg), start(t, cfg)
	untilReady(c)
	l := c.acquire("orders/1001", "30s")
	beside.want(http.StatusConflict, "POST", "/v1/leases", map[string]string{"resource": "orders/1001", "ttl": "30s"})
	beside.want(http.StatusOK, "POST", "/v1/leases/renew", map[string]string{"handle": l.handle})
	if _, err := c.connect(pg, l).Exec(t.Context(), "UPDATE orders SET status = 'paid' WHERE id = 1001"); err != nil {
		t.Errorf("the holder's write: %v", err)
	}
	if err := c.upload(l, "1001/invoice", "x"); err != nil {
		t.Errorf("the holder's upload: %v", err)
	}
	if a := c.want(http.StatusOK, "GET", "/v1/resources/orders%2F1001", nil); !strings.Contains(a.text("holder"), "test") && a.Body["lock"] == nil {
		t.Errorf("inspection: %v", a.Body)
	}
	c.want(http.StatusOK, "POST", "/v1/resources/orders%2F1001/revoke", map[string]string{})
	c.want(http.StatusGone, "POST", "/v1/leases/renew", map[string]string{"handle": l.handle})
	next := beside.acquire("orders/1001", "30s")
	if number(t, next.token) <= number(t, l.token) {
		t.Errorf("token %s after %s", next.token, l.token)
	}
	beside.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": next.handle})
	c.want(http.StatusCreated, "POST", "/v1/leases/all", map[string]any{"resources": []string{"orders/2", "orders/1001"}, "ttl": "30s", "wait": "0s"})
	series := c.scraped()
	if series[`fencegate_lease_renewals_total`] == "" || series[`fencegate_lease_wait_seconds_count`] != "3" {
		t.Errorf("metrics: %q renewals, %q acquired", series[`fencegate_lease_renewals_total`], series[`fencegate_lease_wait_seconds_count`])
	}
}

// Two gateways with different sources would each grant a lease of their own.
func TestGatewaysOfADatabaseHaveOneSourceOfLeases(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func(gateway.Config) gateway.Config{
		"redis": func(cfg gateway.Config) gateway.Config { return cfg }, "postgres": alone,
		"etcd": func(cfg gateway.Config) gateway.Config {
			cfg.KeyPrefix += ":etcd" // the other gateway does not see these locks, as with etcd
			sourceOfItsOwn(t, &cfg)
			cfg.InitNodes, cfg.KeyPrefix, cfg.LeaseSource = false, "", "etcd"
			return cfg
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t)
			cfg := config(t, pg)
			one := start(t, first(cfg))
			held := one.acquire("orders/1001", "30s")
			if name == "redis" {
				cfg = alone(cfg)
			}
			other := start(t, cfg)
			a := other.want(http.StatusServiceUnavailable, "POST", "/v1/leases", map[string]string{"resource": "orders/1001", "ttl": "30s"})
			if a.text("part") != "postgresql" || !strings.Contains(a.text("detail"), "come from "+name) || strings.Contains(a.text("detail"), "\n") {
				t.Errorf("%v; want one line that names %s", a.Body, name)
			}
			other.want(http.StatusServiceUnavailable, "GET", "/readyz", nil)
			other.want(http.StatusServiceUnavailable, "POST", "/v1/leases", map[string]string{"resource": "orders/1002", "ttl": "30s"})
			if recorded := one.want(http.StatusOK, "GET", "/v1/resources/orders%2F1001", nil).text("token"); recorded != held.token {
				t.Errorf("the fence stands at %s; want %s, the token of the only lease", recorded, held.token)
			}
			var raised bool
			fenced := pg.Pool(t).QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM fence.resources WHERE resource = 'orders/1002')`)
			if err := fenced.Scan(&raised); err != nil || raised {
				t.Errorf("the refused gateway has raised the fence of a free resource: %v, %v", raised, err)
			}
		})
	}
}

// Without Redis the database's own record identifies a promoted standby.
func TestWithoutRedisAPromotedStandbyGetsNoLeasesUntilItsFencesAreInvalidated(t *testing.T) {
	t.Parallel()
	primary := startCluster(t)
	dir := testenv.ServerDir(t)
	if err := primary.CopyTo(t.Context(), dir, true); err != nil {
		t.Fatal(err)
	}
	standby := run(t, dir)
	cfg := alone(primary.gateway(t))
	c := start(t, cfg)
	a := c.acquire("orders/1001", "30s")
	untilSays(t, standby, `SELECT token::text FROM fence.resources WHERE resource = 'orders/1001'`, a.token)
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	primary.at.moveTo(standby.Addr())
	execOn(t, standby, `SELECT pg_promote()`)
	untilSays(t, standby, `SELECT pg_is_in_recovery()`, "false")
	late := start(t, cfg) // has no history of its own
	for _, gateway := range []*client{c, late} {
		wantForgotten(gateway, "fencegate fence invalidate-all --yes")
	}
	execOn(t, standby, `SELECT raised FROM fence.invalidate_all()`)
	if refused := primary.write(t, a.grant); refused != "ZF001" {
		t.Errorf("the write after the invalidation: %q; want ZF001", refused)
	}
	for _, gateway := range []*client{c, late} {
		untilReady(gateway)
	}
	next := late.acquire("orders/1001", "30s") // its old lease has ended, too
	if number(t, next.token) <= number(t, a.token) {
		t.Errorf("token %s after %s", next.token, a.token)
	}
}

// Without Redis, gateways that have seen more recognize a server that was reset to an earlier state.
func TestWithoutRedisAServerThatWasSetBackGetsNoLeases(t *testing.T) {
	t.Parallel()
	server := startCluster(t)
	c := start(t, alone(server.gateway(t)))
	a := c.acquire("orders/1001", "30s")
	untilReady(c)
	backup := testenv.ServerDir(t)
	if err := server.CopyTo(t.Context(), backup, false); err != nil {
		t.Fatal(err)
	}
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": a.handle})
	b := c.acquire("orders/1001", "30s")
	untilReady(c) // what is written so far is recorded
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	restored := run(t, backup)
	server.at.moveTo(restored.Addr())
	wantForgotten(c, "fencegate fence invalidate-all --yes")
	execOn(t, restored, `SELECT raised FROM fence.invalidate_all()`)
	untilReady(c)
	if next := c.acquire("orders/1001", "30s"); number(t, next.token) <= number(t, b.token) {
		t.Errorf("token %s after the lost %s", next.token, b.token)
	}
}
