//go:build unix

package gateway_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	goclient "github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestSeveralResourcesAreLeasedTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	c := start(t, config(t, pg))
	cl, err := goclient.New(goclient.Config{URL: "http://" + c.g.Addrs().API})
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"stock/7", "orders/1001"}
	asked := goclient.AcquireRequest{TTL: time.Minute, Holder: "worker-a"}
	leases, err := cl.AcquireAll(t.Context(), names, asked)
	if err != nil || len(leases) != 2 {
		t.Fatalf("%d leases, %v", len(leases), err)
	}
	grants := make([]fence.Grant, 2)
	for i, lease := range leases {
		if grants[i], err = lease.Grant(); err != nil || grants[i].Resource != names[i] || lease.Deadline.Left() <= 0 {
			t.Errorf("lease %d: %v, %v", i, grants[i], err)
		}
	}
	nothing := func(pgx.Tx) error { return nil }
	if err := pgfence.InTxAll(t.Context(), testenv.PoolOf(t, pg.WriterURL), pgfence.TxOptions{}, grants, nothing); err != nil {
		t.Errorf("the grants are not those that are armed: %v", err)
	}

	// One is held: the others do not stay locked.
	if err := cl.Release(t.Context(), leases[0].Handle); err != nil {
		t.Fatal(err)
	}
	a := c.want(http.StatusConflict, "POST", "/v1/leases/all", map[string]any{"resources": []string{"a", "orders/1001", "stock/7"}})
	if a.Body["code"] != "held" || a.Body["resource"] != "orders/1001" || a.Body["holder"] != "worker-a" {
		t.Errorf("%v", a.Body)
	}
	c.acquire("a", "1m")

	// A waiting client gets them when the last one is released.
	waited := make(chan error, 1)
	go func() {
		again := asked
		again.Wait = 30 * time.Second
		_, err := cl.AcquireAll(t.Context(), names, again)
		waited <- err
	}()
	testenv.Eventually(t, "it waits", func() bool {
		lock, _ := c.do("GET", "/v1/resources/orders/1001", nil).Body["lock"].(map[string]any)
		return lock["waiters"] == 1.0
	})
	if err := cl.Release(t.Context(), leases[1].Handle); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; err != nil {
		t.Errorf("waiting: %v", err)
	}
}
