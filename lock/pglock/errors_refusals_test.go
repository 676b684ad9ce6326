package pglock_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/pooler/poolertest"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/pglock"
	"github.com/fencegate/fencegate/migrate"
)

// refused checks that nothing is granted, and that the error is one line that contains want.
func refused(t *testing.T, s *pglock.Source, want string) {
	t.Helper()
	_, err := s.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: ttl})
	_, notReady := s.Ready(t.Context())
	for what, err := range map[string]error{"acquire": err, "ready": notReady} {
		if !errors.Is(err, leasing.ErrUnavailable) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %q; want one line of ErrUnavailable with %q", what, err, want)
		}
	}
}

func TestWhatCannotServeIsSaidInALine(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	wrong, err := url.Parse(pg.GatewayURL)
	if err != nil {
		t.Fatal(err)
	}
	wrong.User = url.UserPassword(wrong.User.Username(), "wrong")
	for name, c := range map[string]struct{ address, want string }{
		"away":           {"postgres://a:b@127.0.0.1:1/c?connect_timeout=20", "no connection to PostgreSQL"},
		"wrong password": {wrong.String(), "password authentication failed"},
		"no right":       {pg.OtherURL, "grant the login fence_locker"},
		"a writer's":     {pg.WriterURL, "grant the login fence_locker"},
		"another kind":   {"postgres://a:secret@" + testenv.Redis(t, 1).Addrs[0] + "/c?connect_timeout=2", "no answer in time"},
		"older schema":   {older(t), "fencegate migrate up"},
		"no schema":      {testenv.PostgresEmpty(t).URL, "fencegate migrate up"},
		"isolation":      {pg.As(t, "fence_locker") + "&default_transaction_isolation=serializable", "Connect with default_transaction_isolation = 'read committed'"},
		"read-only":      {pg.As(t, "fence_locker") + "&default_transaction_read_only=on", "connect with default_transaction_read_only = off"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, source(t, pglock.Config{Pool: pool(t, c.address)}), c.want)
		})
	}
	for name, cfg := range map[string]pglock.Config{
		"no pool":        {},
		"endless leases": {Pool: pg.Pool(t), MaxTTL: 1 << 60},
		"holder":         {Pool: pg.Pool(t), Holder: "a\nb"},
	} {
		if _, err := pglock.New(cfg); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v; want ErrInvalid", name, err)
		}
	}
}

// A login's settings do not change by themselves. A standby may be promoted.
func TestOnlyWhatMayPassIsWaitedFor(t *testing.T) {
	t.Parallel()
	settings := map[string]string{"wal_level": "replica", "max_wal_senders": "4", "shared_buffers": "16MB"}
	server := testenv.OwnPostgres(t, pgserver.Config{Settings: settings, Fast: true})
	primary := server.URL("postgres")
	if err := migrate.Up(t.Context(), primary, migrate.All); err != nil {
		t.Fatal(err)
	}
	dir := testenv.ServerDir(t)
	if err := server.CopyTo(t.Context(), dir, true); err != nil {
		t.Fatal(err)
	}
	standby := testenv.OwnPostgres(t, pgserver.Config{Dir: dir, Settings: settings, Fast: true}).URL("postgres")
	for name, c := range map[string]struct {
		address, want string
		waits         bool
	}{
		"standby":              {standby, "is a standby here", true},
		"read-only standby":    {standby + "&default_transaction_read_only=on", "is a standby here", true},
		"read-only primary":    {primary + "&default_transaction_read_only=on", "connect with default_transaction_read_only = off", false},
		"serializable primary": {primary + "&default_transaction_isolation=serializable", "Connect with default_transaction_isolation = 'read committed'", false},
		"pooler":               {poolertest.InTransactionMode(t, primary, 1) + "&statement_timeout=5000", "unsupported startup parameter: statement_timeout", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := pool(t, c.address)
			s := source(t, pglock.Config{Pool: p})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			outcome := make(chan error, 1)
			go func() {
				_, err := s.Acquire(ctx, leasing.UntilDone, leasing.Request{Resource: "r", TTL: ttl})
				outcome <- err
			}()
			until(t, "it gives up, or looks again", func() bool { return len(outcome) == 1 || p.Stat().AcquireCount() > 5 })
			cancel()
			err := <-outcome
			if !errors.Is(err, leasing.ErrUnavailable) || !strings.Contains(err.Error(), c.want) || errors.Is(err, context.Canceled) != c.waits {
				t.Errorf("%v; want %q, waits: %v", err, c.want, c.waits)
			}
		})
	}
}

// older is a database whose schema predates leases in PostgreSQL.
func older(t *testing.T) string {
	t.Helper()
	pg := testenv.Postgres(t)
	for _, sql := range []string{
		`DROP FUNCTION fence.take_leases`, `DROP FUNCTION fence.take_lease`, `DROP FUNCTION fence.leases_ready`,
		`DROP TABLE fence.leases, fence.lease_waiters, fence.lease_source`,
	} {
		if _, err := pg.Pool(t).Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	return pg.GatewayURL
}

// A login with the role fence_locker may change nothing else in the fence.
func TestALockerMayTakeLeasesAndNoMore(t *testing.T) {
	t.Parallel()
	w := setup(t)
	p := pool(t, w.locker)
	for _, sql := range []string{
		`SELECT FROM fence.leases`, `SELECT FROM fence.resources`, `DELETE FROM fence.lease_source`, `SELECT fence.revoke('r')`,
		`SELECT fence.raise('r', 9, NULL, '')`, `SELECT fence.set_source('redis')`, `SELECT fence.invalidate_all()`, `SELECT fence.end_leases()`,
	} {
		_, err := p.Exec(t.Context(), sql)
		if denied, ok := errors.AsType[*pgconn.PgError](err); !ok || denied.Code != "42501" {
			t.Errorf("%s: %v; want insufficient_privilege", sql, err)
		}
	}
}

// The database records its server, so a change is detected even if no process remembers it.
func TestAServerThatMayHaveForgottenGivesNoLease(t *testing.T) {
	t.Parallel()
	w := setup(t)
	lease := w.take(t, "r", ttl)
	w.exec(t, `UPDATE fence.lease_source SET identity = '1/2/3'`)
	refused(t, w.Source, "fencegate fence invalidate-all --yes")
	refused(t, w.process(t), "it is ")
	if _, err := w.Extend(t.Context(), lease.Ref(), ttl); !errors.Is(err, leasing.ErrUnavailable) {
		t.Errorf("extend: %v; want ErrUnavailable", err)
	}
	w.exec(t, `SELECT fence.invalidate_all()`)
	if _, err := w.Extend(t.Context(), lease.Ref(), ttl); !errors.Is(err, leasing.ErrLost) {
		t.Errorf("extend after that: %v; want ErrLost: every lease has ended", err)
	}
	if next := w.take(t, "r", ttl); next.Grant.Token <= lease.Grant.Token {
		t.Errorf("token %d after %d", next.Grant.Token, lease.Grant.Token)
	}
}

func TestLeasesComeFromOneSource(t *testing.T) {
	t.Parallel()
	w := setup(t)
	if is := ask[string](t, w, `SELECT fence.claim_source('redis')`); is != "redis" {
		t.Fatal(is)
	}
	refused(t, w.Source, "come from redis, not from PostgreSQL")
	w.exec(t, `SELECT fence.set_source('postgres')`)
	lease := w.take(t, "r", ttl)
	if is := ask[string](t, w, `SELECT fence.claim_source('redis')`); is != "postgres" {
		t.Errorf("the source is %s", is)
	}
	if _, err := w.admin.Exec(t.Context(), `SELECT fence.set_source('redis')`); err == nil {
		t.Error("the source changed while a lease is held")
	}
	if err := w.Release(t.Context(), lease.Ref()); err != nil {
		t.Fatal(err)
	}
	w.exec(t, `SELECT fence.set_source('redis')`)
	refused(t, w.Source, "come from redis")
}

// Retiring deletes the lease's row too, and leaves held leases alone.
func TestRetiringTakesTheLeasesRow(t *testing.T) {
	t.Parallel()
	w := setup(t)
	used := w.take(t, "used", ttl)
	w.exec(t, `SELECT fence.end_grants(ARRAY['used'], ARRAY[$1::bigint], ARRAY[NULL::bytea])`, int64(used.Grant.Token))
	unused := w.take(t, "unused", ttl)
	if err := w.Release(t.Context(), unused.Ref()); err != nil {
		t.Fatal(err)
	}
	until(t, "what is unused retires", func() bool { return ask[int](t, w, `SELECT retired FROM fence.retire('0')`) == 1 })
	if names := ask[string](t, w, `SELECT string_agg(resource, ' ') FROM fence.leases`); names != "used" {
		t.Errorf("there are leases of %q", names)
	}
	if next := w.take(t, "unused", time.Minute); next.Grant.Token <= unused.Grant.Token {
		t.Errorf("token %d after %d", next.Grant.Token, unused.Grant.Token)
	}
}
