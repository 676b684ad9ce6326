package pglock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence/leasing"
)

// A waiter whose name is not a valid channel would fail each release.
func TestAPlaceInTheLineHasAPlainNameAndIsKeptForAnHourAtMost(t *testing.T) {
	t.Parallel()
	w := setup(t)
	held := w.take(t, "r", ttl)
	p := pool(t, w.locker)
	for _, place := range []string{`repeat('x', 60), '1 h'`, `'A"b', '1 h'`, `'', '1 h'`, `'x', '1000 years'`, `'x', '61 min'`, `'x', NULL`} {
		_, err := p.Exec(t.Context(), `SELECT fence.take_lease('r', 'o', 60000000, sha256('x'), '', true, `+place+`)`)
		if refused, ok := errors.AsType[*pgconn.PgError](err); !ok || refused.Code != "22023" {
			t.Errorf("%s: %v; want invalid_parameter_value", place, err)
		}
	}
	if err := w.Release(t.Context(), held.Ref()); err != nil {
		t.Errorf("release: %v", err)
	}
}

// Any open transaction blocks a lease for at most 5 seconds.
func TestWhatAnotherHasLockedIsBusy(t *testing.T) {
	t.Parallel()
	w := setup(t)
	lease := w.take(t, "r", 5*time.Minute)
	release := w.lock(t, `SELECT FROM fence.leases WHERE resource = 'r' FOR UPDATE`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	outcomes := make(chan error, 2)
	go func() {
		_, err := w.Extend(ctx, lease.Ref(), ttl)
		outcomes <- err
	}()
	go func() {
		_, err := w.process(t).Acquire(ctx, leasing.AtOnce, leasing.Request{Resource: "r", TTL: ttl})
		if errors.Is(err, leasing.ErrHeld) { // the group saw the holder
			_, err = pool(t, w.locker).Exec(ctx, `SELECT fence.take_lease('r', 'o', 60000000, sha256('x'), '', true)`)
			if refused, ok := errors.AsType[*pgconn.PgError](err); ok && refused.Code == "55P03" {
				err = leasing.ErrUnavailable
			}
		}
		outcomes <- err
	}()
	for range 2 {
		if err := <-outcomes; !errors.Is(err, leasing.ErrUnavailable) || !leasing.Retryable(err) || ctx.Err() != nil {
			t.Errorf("%v; want ErrUnavailable", err)
		}
	}
	if err := w.Release(ctx, lease.Ref()); !errors.Is(err, leasing.ErrUnavailable) || ctx.Err() != nil {
		t.Errorf("release: %v; want ErrUnavailable", err)
	}
	release()
	if err := w.Release(t.Context(), lease.Ref()); err != nil {
		t.Errorf("release: %v", err)
	}
}

// While another transaction has a resource's turn, a release of it is busy: it neither frees the lease nor reports it
// lost. Other releases of its group succeed.
func TestAReleaseTakesNobodysTurn(t *testing.T) {
	t.Parallel()
	w := setup(t)
	lease, other := w.take(t, "r", 5*time.Minute), w.take(t, "s", 5*time.Minute)
	done := w.lock(t, `SELECT FROM fence.arms WHERE resource = 'r' FOR UPDATE`)
	for _, c := range []struct{ limit, want string }{{"0", "r: busy, s: freed"}, {"100 ms", "r: busy, s: "}} {
		said := ask[string](t, w, `SELECT string_agg(format('%s: %s', CASE n WHEN 1 THEN 'r' ELSE 's' END, CASE WHEN freed THEN 'freed' WHEN busy THEN 'busy' END), ', ' ORDER BY n)
			FROM fence.free_leases(ARRAY['r', 's'], ARRAY[$1, $2], $3::interval)`, lease.Owner, other.Owner, c.limit)
		if said != c.want {
			t.Errorf("with a limit of %s: %q; want %q", c.limit, said, c.want)
		}
	}
	done()
	if err := w.Release(t.Context(), lease.Ref()); err != nil {
		t.Errorf("release: %v", err)
	}
}

// Nobody has taken the resource since. The release still reports that it came too late.
func TestAReleaseAfterTheEndSaysSo(t *testing.T) {
	t.Parallel()
	w := setup(t)
	lease := w.take(t, "r", ttl)
	w.exec(t, `UPDATE fence.leases SET ends_at = clock_timestamp() - interval '1 s'`)
	if err := w.Release(t.Context(), lease.Ref()); !errors.Is(err, leasing.ErrLost) {
		t.Errorf("%v; want ErrLost", err)
	}
}

// Setting the source fails on a server that was not accepted.
func TestSettingTheSourceDoesNotAcceptAServerThatMayHaveForgotten(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `SELECT fence.claim_source('redis')`)
	w.exec(t, `UPDATE fence.lease_source SET identity = '1/2/3'`)
	_, err := w.admin.Exec(t.Context(), `SELECT fence.set_source('postgres')`)
	if refused, ok := errors.AsType[*pgconn.PgError](err); !ok || refused.Code != "ZF102" {
		t.Errorf("%v; want ZF102", err)
	}
	w.exec(t, `SELECT fence.invalidate_all()`)
	w.exec(t, `SELECT fence.set_source('postgres')`)
}

func TestAStandbySaysThatItIsOne(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `SELECT fence.claim_source('postgres')`)
	w.exec(t, `CREATE OR REPLACE FUNCTION fence.server_identity() RETURNS text LANGUAGE sql AS 'SELECT NULL::text'`)
	refused(t, w.Source, "is a standby here")
}

func TestDeadPlacesAreRemoved(t *testing.T) {
	t.Parallel()
	w := setup(t)
	held := w.take(t, "r", ttl)
	w.exec(t, `INSERT INTO fence.lease_waiters SELECT r, w, 1, clock_timestamp() - d FROM (VALUES ('r', 'dead', interval '2 min'), ('r', 'late', '0'), ('s', 'dead', '2 min')) x(r, w, d)`)
	if err := w.Release(t.Context(), held.Ref()); err != nil {
		t.Fatal(err)
	}
	const names = `SELECT coalesce(string_agg(resource || ' ' || waiter, ', ' ORDER BY resource, waiter), '') FROM fence.lease_waiters`
	if left := ask[string](t, w, names); left != "r late, s dead" {
		t.Errorf("after the release: %q", left)
	}
	w.exec(t, `SELECT fence.retire('30 days')`)
	if left := ask[string](t, w, names); left != "r late" {
		t.Errorf("after retiring: %q", left)
	}
}

func TestNoLeaseHasNoOwner(t *testing.T) {
	t.Parallel()
	w := setup(t)
	if ask[bool](t, w, `SELECT taken FROM fence.take_leases(ARRAY['r'], ARRAY[''], ARRAY[60000000], ARRAY[sha256('x')], ARRAY[''], ARRAY[false])`) {
		t.Error("a lease was taken for nobody")
	}
	w.exec(t, `INSERT INTO fence.leases (resource, owner, token, holder, ends_at) VALUES ('s', '', 1, '', 'infinity')`)
	w.exec(t, `SELECT fence.end_leases()`)
	if ask[int](t, w, `SELECT count(*) FROM fence.leases WHERE ends_at > clock_timestamp()`) > 0 {
		t.Error("a lease outlived the end of all")
	}
}
