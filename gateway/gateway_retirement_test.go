package gateway_test

import (
	"errors"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/testenv"
)

// Fences of released and of abandoned leases retire; the fence of a held lease stays.
func TestUnusedFencesRetire(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	cfg := config(t, pg)
	cfg.RetireAfter = 300 * time.Millisecond
	c := start(t, cfg)
	held := c.acquire("orders/held", "60s")
	released := c.acquire("orders/released", "60s")
	c.want(http.StatusNoContent, http.MethodPost, "/v1/leases/release", map[string]string{"handle": released.handle})
	lost := c.acquire("orders/lost", "60s")
	c.runOut(lost, pg)
	pool := pg.Pool(t)
	testenv.Eventually(t, "one fence is left", func() error {
		var left string
		err := pool.QueryRow(t.Context(), `SELECT coalesce(string_agg(resource, ' '), '') FROM fence.resources`).Scan(&left)
		if err == nil && left != "orders/held" {
			err = errors.New(left)
		}
		return err
	})
	again := c.acquire("orders/lost", "60s")
	if again.number(t) <= lost.number(t) {
		t.Errorf("token %s after %s", again.token, lost.token)
	}
	c.want(http.StatusNoContent, http.MethodPost, "/v1/leases/release", map[string]string{"handle": held.handle})
}

func (l lease) number(t *testing.T) int64 {
	t.Helper()
	n, err := strconv.ParseInt(l.token, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
