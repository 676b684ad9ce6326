//go:build unix

package gateway_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/testenv"
)

// Nonces of two process runs.
const (
	runA = "0b64e2f4-5e4f-4f4c-9a68-0d2d2f0c9c11"
	runB = "e27c4f3b-63fd-4d3a-bd3c-8f7e3a1f5a02"
)

// asOnce returns the option for a lease of one process run.
func asOnce(nonce string) string {
	return "-c fence.lease=orders/1001;once=" + nonce + ";ttl=9s;wait=20s"
}

// poolOf returns a pool with default settings, except for its size: the lease belongs to one connection.
func (c *client) poolOf(pg testenv.PG, options string) *pgxpool.Pool {
	c.t.Helper()
	cfg, err := pgxpool.ParseConfig(pg.WriterURL)
	if err != nil {
		c.t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(c.g.Addrs().PG)
	_, _ = fmt.Sscan(port, &cfg.ConnConfig.Port)
	cfg.ConnConfig.Host, cfg.MaxConns = host, 1
	cfg.ConnConfig.RuntimeParams["options"] = options
	pool, err := pgxpool.NewWithConfig(c.t.Context(), cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(pool.Close)
	return pool
}

func status(t *testing.T, pg testenv.PG) (is string) {
	t.Helper()
	if err := pg.Pool(t).QueryRow(t.Context(), "SELECT status FROM orders WHERE id = 1001").Scan(&is); err != nil {
		t.Fatal(err)
	}
	return is
}

// A reads; it is superseded; B writes; A writes a value computed from what it read. A's pool reconnects by itself.
func TestAPoolThatReconnectsGivesAStaleProgramNoFreshToken(t *testing.T) {
	t.Parallel()
	for name, supersede := range map[string]func(c *client, pg testenv.PG){
		"by another run": func(c *client, pg testenv.PG) {
			conn, err := c.login(t.Context(), pg, asOnce(runB))
			if err != nil {
				c.t.Fatal(err)
			}
			defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
			if _, err := conn.Exec(t.Context(), updateOrder, "by B"); err != nil {
				c.t.Fatal(err)
			}
		},
		"by an operator": func(c *client, pg testenv.PG) {
			if a := c.do("POST", "/v1/resources/orders/1001/revoke", map[string]string{"holder": "ops"}); a.Status != 200 {
				c.t.Fatalf("revoke: %+v", a)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, pg := leasingGateway(t, nil)
			a := c.poolOf(pg, asOnce(runA))
			write := func() error { _, err := a.Exec(t.Context(), updateOrder, "by A"); return err }
			if err := write(); err != nil {
				t.Fatal(err)
			}
			a.Reset() // its connection ends, and another takes the lease, with no holder in between
			if err := write(); err != nil {
				t.Fatalf("its own reconnect: %v", err)
			}
			a.Reset()
			testenv.Eventually(t, "the lease is free", func() bool { _, locked := c.locked("orders/1001"); return !locked })
			supersede(c, pg)
			before := status(t, pg)
			for try := range 3 { // a pool retries
				err := write()
				if refused := fatal(err); refused.Code != "ZF006" || refused.Hint == "" || !strings.Contains(refused.Detail, `"recorded"`) {
					t.Errorf("try %d: %v; want FATAL ZF006", try, err)
				}
			}
			if after := status(t, pg); after != before {
				t.Errorf("a stale program stored %q over %q", after, before)
			}
			if _, locked := c.locked("orders/1001"); locked {
				t.Error("the refused one holds the lease")
			}
			next, err := c.login(t.Context(), pg, asOnce(runB))
			if name == "by an operator" && err != nil {
				t.Fatalf("a new run: %v", err)
			}
			if err == nil {
				_ = next.Close(t.Context())
			}
		})
	}
}

// The gateway ends the session of a superseded run, and refuses the connection that the program's pool opens next.
func TestASupersededSessionsPoolIsRefused(t *testing.T) {
	t.Parallel()
	c, pg := leasingGateway(t, nil)
	a := c.poolOf(pg, asOnce(runA))
	if _, err := a.Exec(t.Context(), updateOrder, "by A"); err != nil {
		t.Fatal(err)
	}
	if answer := c.do("POST", "/v1/resources/orders/1001/revoke", map[string]string{"holder": "ops"}); answer.Status != 200 {
		t.Fatalf("revoke: %+v", answer)
	}
	began := time.Now()
	b, err := c.login(t.Context(), pg, asOnce(runB))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Exec(t.Context(), updateOrder, "by B"); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "A's pool hears that its nonce is spent", func() bool {
		_, err := a.Exec(t.Context(), updateOrder, "by A, stale")
		if err == nil {
			t.Fatal("a stale write was accepted")
		}
		return fatal(err).Code == "ZF006"
	})
	if is := status(t, pg); is != "by B" {
		t.Errorf("stored: %q after %v", is, time.Since(began))
	}
}

// A second connection of one pool is refused at once, however long it would wait.
func TestAPoolsSecondConnectionIsToldThatItsOwnPoolHoldsTheLease(t *testing.T) {
	t.Parallel()
	c, pg := leasingGateway(t, func(cfg *gateway.Config) { cfg.PG.MaxLeaseWait = time.Hour })
	first, err := c.login(t.Context(), pg, asOnce(runA))
	if err != nil {
		t.Fatal(err)
	}
	patience, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, wait := range []string{"", ";wait=1h"} {
		_, err = c.login(patience, pg, "-c fence.lease=orders/1001;once="+runA+wait)
		if refused := fatal(err); refused.Code != "55P03" || !strings.Contains(refused.Message, "of this process run") || refused.Hint == "" {
			t.Errorf("%q: %v; want FATAL 55P03 that names the own run", wait, err)
		}
	}
	next := make(chan error, 1)
	go func() { // another run waits as usual
		conn, err := c.login(t.Context(), pg, asOnce(runB))
		if err == nil {
			_, err = conn.Exec(t.Context(), updateOrder, "by B")
		}
		next <- err
	}()
	testenv.Eventually(t, "B waits", func() bool {
		lock, _ := c.do("GET", "/v1/resources/orders/1001", nil).Body["lock"].(map[string]any)
		return lock["waiters"] == 1.0
	})
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-next; err != nil {
		t.Error(err)
	}
	if _, err := c.login(patience, pg, "-c fence.lease=orders/1001;once="+runA+";wait=1h"); fatal(err).Code != "ZF006" {
		t.Errorf("%v; want ZF006 at once, also where the resource is held", err)
	}
}

// A program that says fresh keeps no data between connections, and is never refused for an earlier lease.
func TestAFreshLeaseIsGivenAgain(t *testing.T) {
	t.Parallel()
	c, pg := leasingGateway(t, nil)
	for range 2 {
		for _, options := range []string{"-c fence.lease=orders/1001;fresh;wait=20s", "-c fence.lease=orders/1001;wait=20s;fresh"} {
			conn, err := c.login(t.Context(), pg, options)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec(t.Context(), updateOrder, "fresh"); err != nil {
				t.Error(err)
			}
			_ = conn.Close(t.Context())
		}
	}
}
