package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/pglock"
)

// lock locks rows or tables until release is called.
func (w world) lock(t *testing.T, sql string) (release func()) {
	t.Helper()
	tx, err := w.admin.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), sql)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// The extension reads the clock after it has locked the row, since the lease may end during the wait.
func TestALeaseThatEndsWhileItsExtensionWaitsIsNotExtended(t *testing.T) {
	t.Parallel()
	w := setup(t)
	lease := w.take(t, "r", ttl)
	tx, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM fence.leases WHERE resource = 'r' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	outcome := make(chan error, 1)
	go func() {
		_, err := w.Extend(t.Context(), lease.Ref(), ttl)
		outcome <- err
	}()
	until(t, "the extension waits", func() bool {
		return ask[bool](t, w, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%extend_leases%')`)
	})
	_, err = tx.Exec(t.Context(), `UPDATE fence.leases SET ends_at = clock_timestamp() WHERE resource = 'r'`)
	if err := errors.Join(err, tx.Commit(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := <-outcome; !errors.Is(err, leasing.ErrLost) {
		t.Errorf("%v; want ErrLost", err)
	}
	if ask[bool](t, w, `SELECT ends_at > clock_timestamp() FROM fence.leases WHERE resource = 'r'`) {
		t.Error("the lease was revived")
	}
}

func TestARevokedLeaseIsNotExtended(t *testing.T) {
	t.Parallel()
	w := setup(t)
	lease := w.take(t, "r", ttl)
	w.exec(t, `SELECT fence.revoke('r')`)
	if _, err := w.Extend(t.Context(), lease.Ref(), ttl); !errors.Is(err, leasing.ErrLost) {
		t.Errorf("%v; want ErrLost", err)
	}
}

func TestAnExtensionNeverShortensALease(t *testing.T) {
	t.Parallel()
	w := setup(t)
	lease := w.take(t, "r", ttl)
	if _, err := w.Extend(t.Context(), lease.Ref(), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if left := ask[float64](t, w, `SELECT extract(epoch FROM ends_at - clock_timestamp())::float8 FROM fence.leases`); left < 20 {
		t.Errorf("%v seconds are left; a shorter extension must not take any away", left)
	}
}

// counting counts the statements of a pool.
type counting struct{ statements atomic.Int64 }

func (c *counting) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.statements.Add(1)
	return ctx
}

func (c *counting) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestRenewalsOfAProcessGoTogether(t *testing.T) {
	t.Parallel()
	w := setup(t)
	config, err := pgxpool.ParseConfig(w.locker)
	if err != nil {
		t.Fatal(err)
	}
	count := &counting{}
	config.ConnConfig.Tracer = count
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	s := source(t, pglock.Config{Pool: p})
	pglock.GiveTime(s)
	const n = 40
	leases := make([]leasing.Lease, n)
	for i := range leases {
		leases[i], err = leasing.One(s.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: fmt.Sprint(i), TTL: ttl}))
		if err != nil {
			t.Fatal(err)
		}
	}
	release := w.lock(t, `LOCK TABLE fence.leases IN ACCESS EXCLUSIVE MODE`)
	before := count.statements.Load()
	var done sync.WaitGroup
	for _, lease := range leases {
		done.Go(func() {
			if _, err := s.Extend(t.Context(), lease.Ref(), ttl); err != nil {
				t.Error(err)
			}
		})
	}
	until(t, "all but the first wait", func() bool { return pglock.Extending(s) == n-1 })
	release()
	done.Wait()
	if sent := count.statements.Load() - before; sent > 10 {
		t.Errorf("%d statements for %d renewals; they go together", sent, n)
	}
}
