//go:build unix

package gateway_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

func TestWithBestEffortTwoMayHoldAndTheNewestWrites(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	guarded(t, pg)
	node := testenv.OwnRedis(t, 1)[0]
	cfg := config(t, pg)
	cfg.RedisNodes, cfg.BestEffort, cfg.MaxTTL = []lock.Node{{Addr: node.Addr}}, true, 5*time.Minute
	c := start(t, cfg)
	var notes map[string]any
	untilAnswered(c, func(a answer) bool {
		notes, _ = a.Body["notes"].(map[string]any)
		return a.Status == http.StatusOK
	})
	if text, _ := notes["redis"].(string); !strings.Contains(text, "best effort") {
		t.Errorf("readyz says %v", notes)
	}
	older := c.acquire("orders/1001", "5m")
	admin := redis.NewClient(&redis.Options{Addr: node.Addr})
	t.Cleanup(func() { _ = admin.Close() })
	if err := admin.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	newer := c.acquire("orders/1001", "5m") // a quarantine would last longer
	if number(t, newer.token) <= number(t, older.token) {
		t.Errorf("token %s after %s", newer.token, older.token)
	}
	write := func(l lease) error { // bypasses the gateway: only the fence decides
		direct, err := pgx.ParseConfig(pg.WriterURL)
		if err != nil {
			t.Fatal(err)
		}
		direct.RuntimeParams["options"] = fmt.Sprintf("-c fence.resource=%s -c fence.token=%s", fence.EscapeResource(l.resource), l.grant)
		conn, err := pgx.ConnectConfig(t.Context(), direct)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
		_, err = conn.Exec(t.Context(), updateOrder, "by the test")
		return err
	}
	if err := write(older); sqlState(err) != "ZF001" {
		t.Errorf("the older holder's write: %v", err)
	}
	if err := write(newer); err != nil {
		t.Errorf("the newer holder's write: %v", err)
	}
}
