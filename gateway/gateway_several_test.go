//go:build unix

package gateway_test

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	goclient "github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
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

// counter counts the transactions that arm fences.
type counter struct {
	*pgfence.Fence

	one, all int
}

func (c *counter) Arm(ctx context.Context, all ...fence.Arming) error {
	if len(all) == 1 {
		c.one++
	} else {
		c.all++
	}
	return c.Fence.Arm(ctx, all...)
}

// Several resources are locked and then armed in one PostgreSQL transaction: all or none.
func TestSeveralResourcesAreArmedInOneTransaction(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	redis := testenv.Redis(t, 3)
	fences := &counter{Fence: pgfence.New(testenv.PoolOf(t, pg.GatewayURL))}
	cfg := lock.Config{KeyPrefix: lock.Prefix(redis.Prefix), Armer: fences, Epochs: fences, NodeTimeout: 10 * time.Second}
	for _, addr := range redis.Addrs {
		cfg.Nodes = append(cfg.Nodes, lock.Node{Addr: addr})
	}
	l, err := lock.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	initialise(t, l)
	recorded := func(resource string) fence.Token {
		record, err := fences.Inspect(t.Context(), resource)
		if err != nil && !errors.Is(err, fence.ErrNoFence) {
			t.Fatal(err)
		}
		return record.Token
	}
	names := []string{"orders/2", "orders/1", "stock/7"}
	acquire := func() []*lock.Lease {
		t.Helper()
		leases, err := l.AcquireAll(t.Context(), names, lock.WithTTL(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		return leases
	}
	leases := acquire()
	for i, lease := range leases {
		grant, err := lease.Grant()
		if err != nil || grant.Resource != names[i] || recorded(names[i]) != grant.Token {
			t.Errorf("%s: %v, %v; the fence has %d", names[i], grant, err, recorded(names[i]))
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if fences.all != 1 || fences.one != 0 {
		t.Errorf("%d transactions for all, %d for single ones; want one for all", fences.all, fences.one)
	}

	// Redis is behind for one of them: all tokens are raised above their fences.
	revoked, err := fences.Revoke(t.Context(), "orders/1", "ops")
	if err != nil {
		t.Fatal(err)
	}
	leases = acquire()
	if got := leases[1].Ref().Token; got <= revoked || recorded("orders/1") != got {
		t.Errorf("token %d, recorded %d, after a revocation with %d", got, recorded("orders/1"), revoked)
	}
	for _, lease := range leases {
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}

	// One is held: no fence moves, though the others are locked while it is waited for.
	held, err := l.TryAcquire(t.Context(), "stock/7", lock.WithTTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	before := []fence.Token{recorded("orders/1"), recorded("orders/2")}
	ctx, give := context.WithCancel(t.Context())
	defer give()
	waited := make(chan error, 1)
	go func() {
		_, err := l.AcquireAll(ctx, names, lock.WithTTL(time.Minute))
		waited <- err
	}()
	testenv.Eventually(t, "it waits for the last one", func() bool {
		last, err := leasing.One(l.Inspect(t.Context(), "stock/7"))
		return err == nil && last.Waiters == 1
	})
	if first, err := leasing.One(l.Inspect(t.Context(), "orders/1")); err != nil || !first.Locked {
		t.Errorf("the first one while it waits: %+v, %v", first, err)
	}
	give()
	if err := <-waited; !errors.Is(err, lock.ErrHeld) {
		t.Errorf("got %v", err)
	}
	if after := []fence.Token{recorded("orders/1"), recorded("orders/2")}; after[0] != before[0] || after[1] != before[1] {
		t.Errorf("fences moved from %v to %v though nothing was acquired", before, after)
	}
	if err := held.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
