//go:build unix

package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/continuity"
)

// wantForgotten wants no readiness and no lease, with a reason that names the command to run.
func wantForgotten(c *client, command string) {
	c.t.Helper()
	// The pool may still hold connections to the server that is gone.
	untilAnswered(c, func(a answer) bool {
		return a.Status == http.StatusServiceUnavailable && strings.HasSuffix(a.text("detail"), command)
	})
	for _, call := range []struct {
		method, path string
		body         any
	}{
		{"POST", "/v1/leases", map[string]string{"resource": "orders/1001", "ttl": "30s"}},
		{"POST", "/v1/leases", map[string]string{"resource": "orders/2", "ttl": "30s"}},
	} {
		a := c.want(http.StatusServiceUnavailable, call.method, call.path, call.body)
		if a.text("part") != "postgresql" || !strings.HasSuffix(a.text("detail"), command) {
			c.t.Errorf("%s %s: %v; want a reason that ends in %q", call.method, call.path, a.Body, command)
		}
	}
}

func untilReady(c *client) {
	c.t.Helper()
	untilAnswered(c, func(a answer) bool { return a.Status == http.StatusOK })
}

// untilAnswered polls the readiness until want accepts it.
func untilAnswered(c *client, want func(answer) bool) {
	c.t.Helper()
	testenv.Eventually(c.t, "another readiness", func() error {
		if a := c.do("GET", "/readyz", nil); !want(a) {
			return fmt.Errorf("%d %v", a.Status, a.Body)
		}
		return nil
	})
}

func number(t *testing.T, text string) fence.Token {
	t.Helper()
	token, err := fence.ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func TestAPromotedStandbyThatLaggedGetsNoLeasesUntilItsFencesAreInvalidated(t *testing.T) {
	t.Parallel()
	primary := startCluster(t)
	dir := testenv.ServerDir(t)
	if err := primary.CopyTo(t.Context(), dir, true); err != nil {
		t.Fatal(err)
	}
	standby := run(t, dir)
	cfg := primary.gateway(t)
	c, beside := start(t, cfg), start(t, cfg)

	// A's grant reaches the standby. B's does not.
	a := c.acquire("orders/1001", "30s")
	untilSays(t, standby, `SELECT token::text FROM fence.resources WHERE resource = 'orders/1001'`, a.token)
	execOn(t, standby, `ALTER SYSTEM SET primary_conninfo = ''`)
	execOn(t, standby, `SELECT pg_reload_conf()`)
	untilSays(t, primary.Server, `SELECT count(*) FROM pg_stat_replication`, "0")
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": a.handle})
	b := c.acquire("orders/1001", "30s")
	if refused := primary.write(t, a.grant); refused != "ZF001" {
		t.Fatalf("A's write on the primary: %q; want ZF001", refused)
	}
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": b.handle})

	// The failover.
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	// The address moves too early: a standby has not forgotten anything, and cannot be invalidated.
	primary.at.moveTo(standby.Addr())
	untilAnswered(c, func(a answer) bool {
		refused := c.want(http.StatusServiceUnavailable, "POST", "/v1/leases", map[string]string{"resource": "orders/2", "ttl": "30s"}).text("detail")
		if strings.Contains(refused+a.text("detail"), "invalidate") {
			t.Errorf("on a standby: %s", refused)
		}
		return a.Status == http.StatusServiceUnavailable && strings.Contains(refused, "is a standby here")
	})
	execOn(t, standby, `SELECT pg_promote()`)
	untilSays(t, standby, `SELECT pg_is_in_recovery()`, "false")
	if refused := primary.write(t, a.grant); refused != "" {
		t.Fatalf("the promoted standby should have forgotten B's fence, but refuses A by %s: this test shows nothing", refused)
	}
	late := start(t, cfg) // started during the doubt, of which the nodes tell it
	for _, gateway := range []*client{c, beside, late} {
		wantForgotten(gateway, "fencegate fence invalidate-all --yes")
	}

	execOn(t, standby, `SELECT raised FROM fence.invalidate_all()`)
	for name, grant := range map[string]string{"A": a.grant, "B": b.grant} {
		if refused := primary.write(t, grant); refused != "ZF001" {
			t.Errorf("%s's write after the invalidation: %q; want ZF001", name, refused)
		}
	}
	// Redis' counters are far below the raised fence; the next acquisition corrects that.
	for _, gateway := range []*client{late, beside, c} {
		untilReady(gateway)
	}
	next := c.acquire("orders/1001", "30s")
	raised := execOn(t, standby, `SELECT count(*)::text FROM fence.resources WHERE resource = 'orders/1001' AND token = $1::text::bigint`, next.token)
	if number(t, next.token) <= number(t, b.token)+1<<32-1 || raised != "1" {
		t.Errorf("the next token is %s after the lost %s", next.token, b.token)
	}
	if refused := primary.write(t, next.grant); refused != "" {
		t.Errorf("the next holder's write: %s", refused)
	}
	beside.acquire("orders/2", "30s")
	late.acquire("orders/3", "30s")
}

// While a part is away no lease is granted and there is no false alarm; then the gateway recovers by itself.
func TestWhatWasAwayIsTrustedWhenItIsBack(t *testing.T) {
	t.Parallel()
	server := startCluster(t)
	cfg := server.gateway(t)
	nodes := testenv.OwnRedis(t, 3)
	cfg.RedisNodes, cfg.NodeTimeout = nil, 2*time.Second
	for _, n := range nodes {
		cfg.RedisNodes = append(cfg.RedisNodes, lock.Node{Addr: n.Addr})
	}
	both := []*client{start(t, cfg), start(t, cfg)}
	held := both[0].acquire("orders/1001", "60s")
	for name, away := range map[string]struct{ leave, back func() }{
		"PostgreSQL": {func() { server.at.moveTo("127.0.0.1:1") }, func() { server.at.moveTo(server.Addr()) }},
		"a quorum of Redis": {func() {
			for _, n := range nodes[:2] {
				if err := n.Freeze(); err != nil {
					t.Fatal(err)
				}
			}
		}, func() {
			for _, n := range nodes[:2] {
				if err := n.Thaw(); err != nil {
					t.Fatal(err)
				}
			}
		}},
	} {
		away.leave()
		for _, c := range both {
			untilAnswered(c, func(a answer) bool { return a.Status == http.StatusServiceUnavailable })
			if a := c.do("POST", "/v1/leases", map[string]string{"resource": "orders/2", "ttl": "30s"}); a.Status != http.StatusServiceUnavailable || strings.Contains(a.text("detail"), "forgotten") {
				t.Errorf("without %s: %d %v", name, a.Status, a.Body)
			}
		}
		away.back()
		for i, c := range both {
			untilReady(c)
			l := c.acquire(fmt.Sprintf("orders/%s %d", name, i), "30s")
			c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.handle})
		}
	}
	if refused := server.write(t, held.grant); refused != "" {
		t.Errorf("the holder's write: %s", refused)
	}
}

func TestAServerThatWasSetBackGetsNoLeasesUntilItsFencesAreInvalidatedAgain(t *testing.T) {
	t.Parallel()
	server := startCluster(t)
	c := start(t, server.gateway(t))
	a := c.acquire("orders/1001", "30s")
	execOn(t, server.Server, `SELECT raised FROM fence.invalidate_all()`) // part of the backup
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": a.handle})
	untilReady(c)
	a = c.acquire("orders/1001", "30s")
	backup := testenv.ServerDir(t)
	if err := server.CopyTo(t.Context(), backup, false); err != nil {
		t.Fatal(err)
	}
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": a.handle})
	b := c.acquire("orders/1001", "30s")
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": b.handle})
	untilReady(c) // what is written so far is recorded

	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	restored := run(t, backup)
	server.at.moveTo(restored.Addr())
	if refused := server.write(t, a.grant); refused != "" {
		t.Fatalf("the restored server should have forgotten B's fence, but refuses A by %s: this test shows nothing", refused)
	}
	// Same system, same timeline, and an invalidation that the backup contains.
	wantForgotten(c, "fencegate fence invalidate-all --yes --again")
	execOn(t, restored, `SELECT raised FROM fence.invalidate_all()`)
	wantForgotten(c, "fencegate fence invalidate-all --yes --again")
	execOn(t, restored, `SELECT raised FROM fence.invalidate_all(true)`)
	for name, grant := range map[string]string{"A": a.grant, "B": b.grant} {
		if refused := server.write(t, grant); refused != "ZF001" {
			t.Errorf("%s's write after the invalidation: %q; want ZF001", name, refused)
		}
	}
	untilReady(c)
	next := c.acquire("orders/1001", "30s")
	if number(t, next.token) <= number(t, b.token) {
		t.Errorf("the next token is %s after the lost %s", next.token, b.token)
	}
}

func TestAServerThatRestartsIsTrustedAtOnce(t *testing.T) {
	t.Parallel()
	server := startCluster(t)
	kept := testenv.ServerDir(t)
	if err := server.CopyTo(t.Context(), kept, false); err != nil {
		t.Fatal(err)
	}
	before := run(t, kept)
	server.at.moveTo(before.Addr())
	c := start(t, server.gateway(t))
	l := c.acquire("orders/1001", "30s")
	if err := before.Kill(); err != nil {
		t.Fatal(err)
	}
	after := run(t, kept) // with its old data
	server.at.moveTo(after.Addr())
	untilReady(c)
	c.acquire("orders/2", "30s")
	if refused := server.write(t, l.grant); refused != "" {
		t.Errorf("the holder's write after a crash of PostgreSQL: %s", refused)
	}
}

// program is a Go program in the gateway's group, with a locker of its own.
func (c *cluster) program(t *testing.T, nodes []lock.Node, prefix string) (*lock.Locker, *continuity.Armer) {
	t.Helper()
	pool, err := pgxpool.ParseConfig(c.as("gate"))
	if err != nil {
		t.Fatal(err)
	}
	armer, err := continuity.Open(t.Context(), continuity.Config{Pool: pool, Nodes: nodes, KeyPrefix: lock.Prefix(prefix)})
	if err != nil {
		t.Fatal(err)
	}
	locker, err := lock.New(lock.Config{Nodes: nodes, KeyPrefix: lock.Prefix(prefix), Armer: armer, Epochs: armer, NodeTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close(); _ = armer.Close() })
	return locker, armer
}

func TestAProgramAndAGatewayOfOneGroupAgreeThatPostgreSQLMayHaveForgotten(t *testing.T) {
	t.Parallel()
	server := startCluster(t)
	cfg := server.gateway(t)
	c := start(t, cfg)
	backup := testenv.ServerDir(t)
	if err := server.CopyTo(t.Context(), backup, false); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()

	// The program arms a fence that the backup lacks. Only the nodes tell the gateway.
	locker, armer := server.program(t, cfg.RedisNodes, cfg.KeyPrefix)
	lease, err := locker.TryAcquire(ctx, "orders/1001")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(lease.Release(ctx), locker.Close(), armer.Close()); err != nil {
		t.Fatal(err)
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	restored := run(t, backup)
	server.at.moveTo(restored.Addr())
	wantForgotten(c, "fencegate fence invalidate-all --yes")

	// The other way round: a program that starts now learns it only from the nodes.
	locker, armer = server.program(t, cfg.RedisNodes, cfg.KeyPrefix)
	if _, err := locker.TryAcquire(ctx, "orders/1001"); !errors.As(err, new(*continuity.ForgottenError)) {
		t.Errorf("the program's acquisition: %v; want a ForgottenError", err)
	}
	execOn(t, restored, `SELECT raised FROM fence.invalidate_all()`)
	untilReady(c)
	if err := armer.Check(ctx); err != nil {
		t.Error(err)
	}
	if lease, err = locker.TryAcquire(ctx, "orders/1001"); err != nil {
		t.Fatal(err)
	}
	c.want(http.StatusConflict, "POST", "/v1/leases", map[string]string{"resource": "orders/1001", "ttl": "30s"})
	if err := lease.Release(ctx); err != nil {
		t.Error(err)
	}
}
