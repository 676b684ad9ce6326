package pglock_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/leasing/leasingtest"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/pglock"
)

// pool is a process's pool, with a login that may only take leases.
func pool(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 4
	pgfence.Configure(config)
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// source is the Source of one process.
func source(t testing.TB, cfg pglock.Config) *pglock.Source {
	t.Helper()
	s, err := pglock.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func TestLeasesOfPostgreSQLFollowTheRules(t *testing.T) {
	t.Parallel()
	leasingtest.RunOwnFence(t, func(t testing.TB) leasingtest.Open {
		locker := testenv.Postgres(t).As(t, "fence_locker")
		return func(leasing.Armer) leasing.Source {
			s, err := pglock.New(pglock.Config{Pool: pool(t, locker)})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
	})
}
