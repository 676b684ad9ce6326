package pglock_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/pooler/poolertest"
	"github.com/fencegate/fencegate/lock/pglock"
)

// through returns a process whose pool connects by an address, in a mode of pgx, and prepared by nobody.
func through(t *testing.T, address string, mode pgx.QueryExecMode) *pglock.Source {
	t.Helper()
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 4
	config.ConnConfig.DefaultQueryExecMode = mode
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	s := source(t, pglock.Config{Pool: p})
	pglock.GiveTime(s)
	return s
}

// A statement that one client prepares exists in one of the pooler's sessions, for each client to which that is lent.
func TestLeasesWorkBehindAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			pooled := poolertest.InTransactionMode(t, w.locker, 2)
			processes := []*pglock.Source{through(t, pooled, mode), through(t, pooled, mode), through(t, pooled, mode)}
			for i := range 20 {
				s, r := processes[i%len(processes)], leasing.Request{Resource: fmt.Sprint("r", i), TTL: ttl}
				lease, err := leasing.One(s.Acquire(t.Context(), leasing.AtOnce, r))
				if err != nil {
					t.Fatalf("acquisition %d: %v", i, err)
				}
				next := processes[(i+1)%len(processes)]
				if ins, err := leasing.One(next.Inspect(t.Context(), r.Resource)); err != nil || ins.Token != lease.Grant.Token {
					t.Errorf("inspection %d: %+v, %v", i, ins, err)
				}
				if all, err := next.Inspect(t.Context(), "none", r.Resource); err != nil || len(all) != 2 || !all[1].Locked {
					t.Errorf("inspection %d of two: %+v, %v", i, all, err)
				}
				if _, err := next.Extend(t.Context(), lease.Ref(), ttl); err != nil {
					t.Errorf("renewal %d: %v", i, err)
				}
				if err := next.Release(t.Context(), lease.Ref()); err != nil {
					t.Errorf("release %d: %v", i, err)
				}
				if _, err := next.Ready(t.Context()); err != nil {
					t.Errorf("ready %d: %v", i, err)
				}
			}
		})
	}
}

// No notification arrives there: the session that listens is lent to others.
func TestAWaiterBehindAPoolerInTransactionModePolls(t *testing.T) {
	t.Parallel()
	w := setup(t)
	pooled := poolertest.InTransactionMode(t, w.locker, 2)
	first, second := through(t, pooled, pgx.QueryExecModeCacheStatement), through(t, pooled, pgx.QueryExecModeCacheStatement)
	held := w.take(t, "r", ttl)
	outcome := make(chan error, 2)
	for _, s := range []*pglock.Source{first, second} {
		go func() {
			lease, err := leasing.One(s.Acquire(t.Context(), leasing.UntilDone, leasing.Request{Resource: "r", TTL: ttl}))
			if err == nil {
				err = s.Release(t.Context(), lease.Ref())
			}
			outcome <- err
		}()
	}
	until(t, "both stand in the line", func() bool { return w.waiters(t) == 2 })
	if err := w.Release(t.Context(), held.Ref()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-outcome; err != nil {
			t.Error(err)
		}
	}
	if n := w.waiters(t); n != 0 {
		t.Errorf("%d still stand in the line", n)
	}
}
