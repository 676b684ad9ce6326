package pgfence_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// Wherever the connection of a group breaks, each caller's result is true.
func TestWhateverBreaksAGroupTheOutcomesAreTrue(t *testing.T) {
	t.Parallel()
	w := setup(t)
	seen := map[string]int{}
	for step := 1; step <= 10; step++ {
		var f fault
		pool := f.pool(t, w.pg.GatewayURL, "group")
		arming := pgfence.New(pool)
		pgfence.GiveTime(arming)
		release := w.block(t)
		first := later(func() error {
			return arming.Arm(t.Context(), fence.Arming{Resource: "first", Token: fence.Token(time.Now().UnixNano()), SealHash: fence.NewSeal().Hash()})
		})
		w.waitFor(t, "the first is on its way", isBlocked)
		var results []<-chan error
		for i, a := range next(3, fence.Token(step)) {
			results = append(results, later(func() error { return arming.Arm(t.Context(), a) }))
			w.queued(t, arming, i+1)
		}
		f.set(step, func(conn net.Conn) { _ = conn.Close() })
		release()
		<-first
		errs := make([]error, len(results))
		for i, one := range results {
			errs[i] = <-one
		}
		f.left.Store(0)
		pool.Close()
		w.waitFor(t, "the server has noticed", nobodyIs, "group")
		for i, err := range errs {
			armed := value[bool](t, w, `SELECT EXISTS (SELECT FROM fence.resources WHERE token = $1 AND resource = $2)`, step, fmt.Sprintf("many/%03d", i))
			switch {
			case err == nil && !armed:
				t.Errorf("step %d, %d: said armed, and it is not", step, i)
			case err != nil && armed && !errors.Is(err, fence.ErrUnknown):
				t.Errorf("step %d, %d: said not armed, and it is: %v", step, i, err)
			case err == nil:
				seen["armed"]++
			default:
				seen["not or unknown"]++
			}
		}
	}
	t.Log(seen)
}

// If PostgreSQL ends a group with an error, each call runs alone, and its caller gets PostgreSQL's error.
func TestAStatementTimeoutIsItsCallers(t *testing.T) {
	t.Parallel()
	w := setup(t)
	f := pgfence.New(poolWith(t, w.pg.GatewayURL, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["statement_timeout"] = "50" }))
	pgfence.GiveTime(f)
	release := w.block(t)
	var results []<-chan error
	for _, a := range next(3, 1) {
		results = append(results, later(func() error { return f.Arm(t.Context(), a) }))
	}
	for i, one := range results {
		var pg *pgconn.PgError
		if err := <-one; !errors.As(err, &pg) || pg.Code != "57014" || errors.Is(err, fence.ErrUnknown) {
			t.Errorf("%d: %v", i, err)
		}
	}
	release()
	if armed := value[int](t, w, `SELECT count(*) FROM fence.resources`); armed != 0 {
		t.Errorf("%d armed", armed)
	}
}

// The group's connection is released before its calls run alone, so a pool of one connection is enough.
func TestAPoolOfOneConnectionIsEnough(t *testing.T) {
	t.Parallel()
	w := setup(t, pgfence.WithGrace(0))
	f := pgfence.New(poolWith(t, w.pg.GatewayURL, func(c *pgxpool.Config) { c.MaxConns = 1 }), pgfence.WithGrace(time.Millisecond))
	pgfence.GiveTime(f)
	_ = paused(t, w, pgx.ReadCommitted, w.acquire(t, orders, 1))
	all := append(next(70, 2), fence.Arming{Resource: orders, Token: 2, SealHash: fence.NewSeal().Hash()})
	for _, result := range w.together(t, f, all...) {
		if err := <-result; err != nil {
			t.Error(err)
		}
	}
}

// Closing the pool during a group is an error for the calls that still need it. They do not hang.
func TestThePoolIsClosedUnderWay(t *testing.T) {
	t.Parallel()
	w := setup(t)
	pool := poolWith(t, w.pg.GatewayURL, func(*pgxpool.Config) {})
	f := pgfence.New(pool)
	pgfence.GiveTime(f)
	release := w.block(t)
	var results []<-chan error
	for i, a := range next(4, 1) {
		results = append(results, later(func() error { return f.Arm(t.Context(), a) }))
		if i == 0 {
			w.waitFor(t, "the first is on its way", isBlocked)
		}
	}
	w.queued(t, f, 3)
	closed := later(func() error { pool.Close(); return nil })
	w.waitFor(t, "time passes", `SELECT pg_sleep(0.01) IS NOT NULL`)
	release()
	<-closed
	for i, one := range results {
		if err := <-one; i > 0 && err != nil && errors.Is(err, fence.ErrUnknown) {
			t.Errorf("%d never left: %v", i, err)
		}
	}
}

// panicking is a tracer that panics a number of times.
type panicking struct{ left atomic.Int32 }

func (p *panicking) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, "fence.") && p.left.Add(-1) >= 0 {
		panic("a tracer")
	}
	return ctx
}

func (*panicking) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A tracer or hook that panics does not end other callers' groups.
func TestAGroupOutlivesAPanic(t *testing.T) {
	t.Parallel()
	w := setup(t)
	var tracer panicking
	f := pgfence.New(poolWith(t, w.pg.GatewayURL, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &tracer }))
	for i, a := range next(3, 1) {
		tracer.left.Store(1)
		if err := f.Arm(t.Context(), a); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	if armed := value[int](t, w, armedTo, 1); armed != 3 {
		t.Errorf("%d armed", armed)
	}
}

// If a group's commit did not reach the standby, the outcome of all its calls is unknown.
func TestAGroupThatDidNotReachTheStandbyIsUnknown(t *testing.T) {
	t.Parallel()
	s := startServer(t)
	w := s.world(t)
	s.standby(t, w, "missing")
	all := next(3, 1)
	first := later(func() error {
		return w.fence.Arm(t.Context(), arming(fence.Grant{Resource: orders, Token: 1, Seal: fence.NewSeal()}))
	})
	w.waitFor(t, "the first waits for the standby", waitsForStandby)
	var results []<-chan error
	for i, a := range all {
		results = append(results, later(func() error { return w.fence.Arm(t.Context(), a) }))
		w.queued(t, w.fence, i+1)
	}
	errs := []error{cancelWaits(t, w, first)}
	for _, one := range results {
		errs = append(errs, cancelWaits(t, w, one))
	}
	for i, err := range errs {
		if !errors.Is(err, fence.ErrUnknown) || !errors.Is(err, pgfence.ErrUnreplicated) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if groups := value[int](t, w, transactions, 1); groups != 1 {
		t.Errorf("%d transactions", groups)
	}
}
