//go:build unix

package gateway_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/testenv"
)

// heedless ignores every cancel request.
const heedless = `DO $$ BEGIN LOOP BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN query_canceled THEN NULL; END; END LOOP; END $$`

// running opens a session that locks a table and runs a long statement.
func running(t *testing.T, c *client, pg testenv.PG, sql string) (ended <-chan error) {
	t.Helper()
	conn := c.connect(pg, c.acquire("orders/1001", "1m"))
	if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE orders IN SHARE ROW EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	came, done := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(done)
		_, err := conn.Exec(t.Context(), sql)
		came <- err
	}()
	t.Cleanup(func() { <-done }) // before the connection is closed
	testenv.Eventually(t, "it runs", func() bool { return sleeping(t, pg) == 1 })
	return came
}

func sleeping(t *testing.T, pg testenv.PG) (n int) {
	t.Helper()
	const sql = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'`
	if err := pg.Pool(t).QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestTheStatementOfAnEndedSessionIsStopped(t *testing.T) {
	t.Parallel()
	revoke := func(c *client, _ testenv.PG) {
		c.want(http.StatusOK, "POST", "/v1/resources/orders/1001/revoke", map[string]string{"holder": "ops"})
	}
	quietly := func(_ *client, pg testenv.PG) { // no gateway is notified: a periodic look finds it
		if _, err := pgfence.New(testenv.PoolOf(t, pg.GatewayURL)).Revoke(t.Context(), "orders/1001", "not a gateway"); err != nil {
			t.Error(err)
		}
	}
	stop := func(c *client, _ testenv.PG) { go func() { _ = c.g.Stop() }() }
	for name, tc := range map[string]struct {
		sql, code string
		end       func(*client, testenv.PG)
	}{
		"superseded":                              {"SELECT pg_sleep(600)", "ZF001", revoke},
		"superseded, and heeds nothing":           {heedless, "ZF001", revoke},
		"superseded, and nobody said":             {"SELECT pg_sleep(600)", "ZF001", quietly},
		"at the drain's limit":                    {"SELECT pg_sleep(600)", "57P01", stop},
		"at the drain's limit, and heeds nothing": {heedless, "57P01", stop},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, pg := guardedGateway(t, func(cfg *gateway.Config) { cfg.DrainTimeout = 100 * time.Millisecond })
			ended := running(t, c, pg, tc.sql)
			began := time.Now()
			tc.end(c, pg)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if _, err := pg.Pool(t).Exec(ctx, "BEGIN; LOCK TABLE orders; COMMIT"); err != nil {
				t.Errorf("its lock is held after %v: %v", time.Since(began), err)
			}
			if n := sleeping(t, pg); n != 0 {
				t.Errorf("%d statements run on", n)
			}
			t.Logf("over after %v", time.Since(began).Round(time.Millisecond))
			if err := <-ended; fatal(err).Code != tc.code {
				t.Errorf("%v; want FATAL %s", err, tc.code)
			}
		})
	}
}
