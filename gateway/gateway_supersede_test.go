//go:build unix

package gateway_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestSupersedingReachesOtherGateways(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	guarded(t, pg)
	cfg := config(t, pg)
	cfg.PG.FencesEvery = time.Hour // only the notifications between the gateways
	one := start(t, cfg)
	cfg.BlobDir = t.TempDir()
	other := start(t, cfg)
	pool := pg.Pool(t)
	testenv.Eventually(t, "both listen", func() bool {
		var n int
		err := pool.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'").Scan(&n)
		return err == nil && n == 2
	})
	for round := range 3 {
		l := one.acquire("orders/1001", "1m")
		conn := other.connect(pg, l)
		bystander := other.connect(pg, one.acquire(fmt.Sprint("orders/", round), "1m"))
		if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE orders IN SHARE ROW EXCLUSIVE MODE"); err != nil {
			t.Fatal(err)
		}
		one.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.handle})
		next := one.acquire("orders/1001", "1m")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if _, err := one.connect(pg, next).Exec(ctx, updateOrder, "by the next"); err != nil {
			t.Errorf("round %d: the next holder waits for what a stale one locked: %v", round, err)
		}
		cancel()
		if _, err := conn.Exec(t.Context(), "COMMIT"); fatal(err).Code != "ZF001" {
			t.Errorf("round %d: %v; want FATAL ZF001", round, err)
		}
		if _, err := bystander.Exec(t.Context(), "SELECT 1"); err != nil {
			t.Errorf("round %d: a session of another resource: %v", round, err)
		}
		one.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": next.handle})
	}
}

func TestWhatNobodySaidIsFoundByLooking(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	guarded(t, pg)
	cfg := config(t, pg)
	cfg.PG.FencesEvery = 20 * time.Millisecond
	c := start(t, cfg)
	conn := c.connect(pg, c.acquire("orders/1001", "1m"))
	// A forged notification ends no session, because it is only a hint.
	if _, err := pg.Pool(t).Exec(t.Context(), "SELECT pg_notify('fencegate_superseded', 'orders/1001'), pg_notify('fencegate_superseded', repeat('x', 7000)), pg_notify('fencegate_superseded', E'\\n\\n')"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), updateOrder, "still"); err != nil {
		t.Errorf("after a forged notification: %v", err)
	}
	if _, err := pgfence.New(testenv.PoolOf(t, pg.GatewayURL)).Revoke(t.Context(), "orders/1001", "not a gateway"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := conn.Exec(ctx, "SELECT pg_sleep(20)"); fatal(err).Code != "ZF001" {
		t.Errorf("%v; want FATAL ZF001", err)
	}
}
