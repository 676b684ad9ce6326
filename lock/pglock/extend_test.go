package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence/clock"
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

// before is called before each statement of a pool.
type before func(sql string)

func (b before) TraceQueryStart(ctx context.Context, _ *pgx.Conn, query pgx.TraceQueryStartData) context.Context {
	b(query.SQL)
	return ctx
}

func (before) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (w world) traced(t *testing.T, b before) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(w.locker)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.Tracer = b
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// The machine is suspended while a statement that takes or extends a lease is on its way.
func TestADeadlineCountsFromBeforeTheStatementIsSent(t *testing.T) {
	t.Parallel()
	w := setup(t)
	const late = 20 * time.Second
	cfg := pglock.Config{}
	machine := cfg.WithClock()
	cfg.Pool = w.traced(t, func(sql string) {
		if strings.Contains(sql, "fence.take_lease") || strings.Contains(sql, "fence.extend_lease") {
			machine.Suspend(late)
		}
	})
	w.Source = source(t, cfg)
	pglock.GiveTime(w.Source)
	inTime := func(what string, deadline clock.Instant) {
		t.Helper()
		if left := deadline.Left(); left <= 0 || left > ttl-late {
			t.Errorf("%s: good for %v, %v after it was sent", what, left, late)
		}
	}
	lease := w.take(t, "r", ttl)
	inTime("a lease", lease.Deadline)
	extended, err := w.Extend(t.Context(), lease.Ref(), ttl)
	if err != nil {
		t.Fatal(err)
	}
	inTime("an extension", extended)
	if machine.Suspend(ttl); !extended.Passed() {
		t.Errorf("good for %v after a suspension that no timer noticed", extended.Left())
	}
}

func TestRenewalsOfAProcessGoTogether(t *testing.T) {
	t.Parallel()
	w := setup(t)
	var statements atomic.Int64
	s := source(t, pglock.Config{Pool: w.traced(t, func(string) { statements.Add(1) })})
	pglock.GiveTime(s)
	const n = 40
	leases := make([]leasing.Lease, n)
	for i := range leases {
		var err error
		leases[i], err = leasing.One(s.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: fmt.Sprint(i), TTL: ttl}))
		if err != nil {
			t.Fatal(err)
		}
	}
	release := w.lock(t, `LOCK TABLE fence.leases IN ACCESS EXCLUSIVE MODE`)
	sent := statements.Load()
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
	if sent = statements.Load() - sent; sent > 10 {
		t.Errorf("%d statements for %d renewals; they go together", sent, n)
	}
}
