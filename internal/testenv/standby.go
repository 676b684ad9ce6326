//go:build unix

package testenv

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// SynchronousStandby sets the standby for which commits wait, on a test's own server, and returns when they do. With ""
// it returns when they no longer wait. admin is a superuser's pool.
func SynchronousStandby(t testing.TB, admin *pgxpool.Pool, name string) {
	t.Helper()
	for _, sql := range []string{"ALTER SYSTEM SET synchronous_standby_names = '" + name + "'", "SELECT pg_reload_conf()"} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			fatal(t, err)
		}
	}
	// Another process of the server makes commits wait, and may read its configuration later.
	for patience := time.Now().Add(30 * time.Second); commitWaits(t, admin) != (name != ""); {
		if time.Now().After(patience) {
			fatal(t, fmt.Errorf("whether commits wait for a standby %q has not changed within 30 s", name))
		}
	}
}

// commitWaits reports whether a COMMIT waits for the standby; false: it completed.
func commitWaits(t testing.TB, admin *pgxpool.Pool) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = admin.Exec(ctx, "SELECT pg_logical_emit_message(true, 'test', 'a transaction that writes')")
	}()
	defer func() { cancel(); <-over }()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return false
		case <-tick.C:
			var waits bool
			if err := admin.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')").Scan(&waits); err != nil {
				fatal(t, err)
			}
			if waits {
				return true
			}
		}
	}
}
