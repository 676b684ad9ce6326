//go:build unix

package gateway_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/testenv"
)

// stopping stops a gateway, and returns once it is no longer ready.
func stopping(c *client) (stopped chan error) {
	c.t.Helper()
	stopped = make(chan error, 1)
	go func() { stopped <- c.g.Stop() }()
	untilAnswered(c, func(a answer) bool { return a.Status == http.StatusServiceUnavailable && a.text("part") == "gateway" })
	return stopped
}

func TestALameDuckServesWhileItIsNotReady(t *testing.T) {
	t.Parallel()
	c, pg := guardedGateway(t, func(cfg *gateway.Config) { cfg.LameDuck = time.Hour })
	stopped := stopping(c)
	l := c.acquire("orders/1001", "1m")
	if _, err := c.connect(pg, l).Exec(t.Context(), updateOrder, "by a lame duck"); err != nil {
		t.Errorf("a new session: %v", err)
	}
	c.want(http.StatusOK, "GET", "/healthz", nil)
	c.g.Abort()
	if err := <-stopped; err != nil {
		t.Errorf("stop: %v", err)
	}
}

// A second signal, or a Run that ends beside a Stop, must not take from the first stop what it still serves with.
func TestEachStopWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	c, _ := guardedGateway(t, func(cfg *gateway.Config) { cfg.LameDuck = time.Hour })
	l := c.acquire("orders/1001", "1m")
	stopped := stopping(c)
	again := make(chan error, 1)
	go func() { again <- c.g.Stop() }()
	notYet(t, again)
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.handle})
	notYet(t, stopped)
	c.g.Abort()
	for _, stop := range []chan error{stopped, again} {
		if err := <-stop; err != nil {
			t.Errorf("stop: %v", err)
		}
	}
}

func TestARunThatEndsBesideAStopWaitsForIt(t *testing.T) {
	t.Parallel()
	cfg := config(t, testenv.Postgres(t))
	cfg.LameDuck = time.Hour
	g, err := gateway.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ran := make(chan error, 1)
	go func() { ran <- g.Run(ctx) }()
	c := &client{t: t, g: g, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
	testenv.Eventually(t, "the gateway runs", func() bool { return g.Addrs().API != "" })
	untilAnswered(c, func(a answer) bool { return a.Status == http.StatusOK })
	stopped := stopping(c)
	cancel()
	notYet(t, ran)
	c.want(http.StatusOK, "GET", "/healthz", nil)
	g.Abort()
	for _, over := range []chan error{stopped, ran} {
		if err := <-over; err != nil {
			t.Errorf("%v", err)
		}
	}
}

// notYet gives a call time to return wrongly.
func notYet(t *testing.T, returned chan error) {
	t.Helper()
	select {
	case err := <-returned:
		t.Errorf("a stop returned before the gateway had drained: %v", err)
		returned <- err
	case <-time.After(300 * time.Millisecond):
	}
}

func TestTheAPIServesUntilTheLastSessionHasDrained(t *testing.T) {
	t.Parallel()
	c, pg := guardedGateway(t, func(cfg *gateway.Config) { cfg.DrainTimeout = time.Hour })
	l := c.acquire("orders/1001", "1m")
	other := c.acquire("orders/2", "1m")
	conn := c.connect(pg, l)
	if _, err := conn.Exec(t.Context(), "BEGIN; UPDATE orders SET status = 'half'"); err != nil {
		t.Fatal(err)
	}
	stopped := stopping(c)
	testenv.Eventually(t, "the port is closed", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := c.login(ctx, pg, "")
		return err != nil
	})
	c.want(http.StatusOK, "POST", "/v1/leases/renew", map[string]string{"handle": l.handle})
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": other.handle})
	if _, err := conn.Exec(t.Context(), "COMMIT"); err != nil {
		t.Errorf("the transaction that was open: %v", err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestAnAbortDoesNotWaitForTransactions(t *testing.T) {
	t.Parallel()
	c, pg := guardedGateway(t, func(cfg *gateway.Config) { cfg.DrainTimeout = time.Hour })
	c.g.Abort() // no stop is in progress yet
	conn := c.connect(pg, c.acquire("orders/1001", "1m"))
	if _, err := conn.Exec(t.Context(), "BEGIN; UPDATE orders SET status = 'half'"); err != nil {
		t.Fatal(err)
	}
	stopped := stopping(c)
	c.g.Abort()
	if _, err := conn.Exec(t.Context(), "COMMIT"); fatal(err).Code != "57P01" {
		t.Errorf("the transaction that was open: %v; want 57P01", err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("stop: %v", err)
	}
}
