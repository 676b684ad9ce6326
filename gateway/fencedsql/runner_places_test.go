//go:build unix

package fencedsql_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/fencedsql"
	"github.com/fencegate/fencegate/wire"
)

// sleeps makes a request run a statement that ends with the test, and returns once total are running.
func (w *world) sleeps(total int) {
	w.t.Helper()
	ctx, wake := context.WithCancel(w.t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = w.run.Run(ctx, w.grant, []wire.Statement{st("SELECT pg_sleep(600)")})
	}()
	w.t.Cleanup(func() { wake(); <-ended })
	w.until(fmt.Sprintf("SELECT count(*) >= %d FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'", total))
}

func TestSlowStatementsDelayNeitherOthersNorTheCheck(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *fencedsql.Config) { c.MaxConns, c.StatementTimeout, c.RequestTimeout = 2, time.Hour, time.Hour })
	w.sleeps(1)
	w.ok(st("SELECT 1"))
	w.sleeps(2)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := w.run.Check(ctx); err != nil { // like /readyz
		t.Errorf("the check while all places are taken: %v", err)
	}
}
