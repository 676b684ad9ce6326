//go:build linux

package pglock_test

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/internal/testenv/clockshim"
	"github.com/fencegate/fencegate/lock/pglock"
)

// If the clock jumps ahead, leases end early, and the fence refuses the former holder. If it jumps back, leases that
// nobody releases last longer, and no lease has two holders.
func TestAServersClockThatJumpsEndsExclusionAndNothingElse(t *testing.T) {
	t.Parallel()
	clock, err := clockshim.Compile(filepath.Dir(testenv.ServerDir(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = clock.Close() })
	s := crashable(t, clock.Env()...)
	p := pool(t, s.url)
	one, other := source(t, pglock.Config{Pool: p}), source(t, pglock.Config{Pool: p})
	pglock.GiveTime(one)
	pglock.GiveTime(other)
	jump := func(d time.Duration) {
		t.Helper()
		if err := clock.Set(d); err != nil {
			t.Fatal(err)
		}
	}
	try := func(s *pglock.Source) (leasing.Lease, error) {
		return leasing.One(s.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: ttl}))
	}
	old, err := try(one)
	if err != nil {
		t.Fatal(err)
	}
	jump(2 * ttl)
	next, err := try(other)
	if err != nil || next.Grant.Token <= old.Grant.Token {
		t.Fatalf("%v, %v after %v, whose lease has ended by the server's clock", next.Grant, err, old.Grant)
	}
	if _, err := one.Extend(t.Context(), old.Ref(), ttl); !errors.Is(err, leasing.ErrLost) {
		t.Errorf("the old holder extends: %v; want ErrLost", err)
	}
	if err := pgfence.InTx(t.Context(), p, old.Grant, func(pgx.Tx) error { return nil }); !errors.Is(err, fence.ErrStale) {
		t.Errorf("the old holder writes: %v; want ErrStale", err)
	}

	jump(-time.Hour)
	held, ok := errors.AsType[*leasing.HeldError](func() error { _, err := try(one); return err }())
	if !ok || held.RetryAfter < time.Hour {
		t.Errorf("the lease's end has not moved away with the clock: %+v", held)
	}
	if err := other.Release(t.Context(), next.Ref()); err != nil {
		t.Fatal(err)
	}
	if last, err := try(one); err != nil || last.Grant.Token <= next.Grant.Token {
		t.Errorf("%v, %v after %v was released", last.Grant, err, next.Grant)
	}
}
