package pglock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock/pglock"
)

const ttl = time.Minute

// world is a database with one process that takes leases.
type world struct {
	pg     testenv.PG
	admin  *pgxpool.Pool
	locker string // address
	*pglock.Source
}

func setup(t *testing.T) world {
	t.Helper()
	pg := testenv.Postgres(t)
	w := world{pg: pg, admin: pg.Pool(t), locker: pg.As(t, "fence_locker")}
	w.Source = w.process(t)
	return w
}

// process is another process.
func (w world) process(t *testing.T) *pglock.Source {
	t.Helper()
	s := source(t, pglock.Config{Pool: pool(t, w.locker)})
	pglock.GiveTime(s)
	return s
}

func (w world) take(t *testing.T, resource string, ttl time.Duration) leasing.Lease {
	t.Helper()
	lease, err := leasing.One(w.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: resource, TTL: ttl}))
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func (w world) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := w.admin.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func ask[T any](t *testing.T, w world, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := w.admin.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// until polls for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(time.Minute); !ok(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("timed out: %s", what)
		}
	}
}

// writing begins a transaction that has passed the check under a grant.
func writing(t *testing.T, address string, grant fence.Grant) pgx.Tx {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	tx, err := conn.Begin(t.Context())
	if err == nil {
		err = pgfence.Use(t.Context(), tx, grant)
	}
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func TestAPausedHoldersWriteIsRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	old, other := w.take(t, "r", ttl), w.process(t)
	if _, err := other.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: ttl}); !errors.Is(err, leasing.ErrHeld) {
		t.Errorf("before the end: %v; want ErrHeld", err)
	}
	w.exec(t, `UPDATE fence.leases SET ends_at = clock_timestamp()`)
	next, err := leasing.One(other.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: ttl}))
	if err != nil || next.Grant.Token <= old.Grant.Token {
		t.Fatalf("%v, %v after %v", next.Grant, err, old.Grant)
	}
	writers := pool(t, w.pg.WriterURL)
	nothing := func(pgx.Tx) error { return nil }
	if err := pgfence.InTx(t.Context(), writers, old.Grant, nothing); !errors.Is(err, fence.ErrStale) {
		t.Errorf("the old holder: %v; want ErrStale", err)
	}
	if err := pgfence.InTx(t.Context(), writers, next.Grant, nothing); err != nil {
		t.Errorf("the new holder: %v", err)
	}
	if _, err := w.Extend(t.Context(), old.Ref(), ttl); !errors.Is(err, leasing.ErrLost) {
		t.Errorf("extend: %v; want ErrLost", err)
	}
}

func TestAReleaseEndsTheGrant(t *testing.T) {
	t.Parallel()
	w := setup(t)
	lease := w.take(t, "r", ttl)
	if err := w.Release(t.Context(), lease.Ref()); err != nil {
		t.Fatal(err)
	}
	err := pgfence.InTx(t.Context(), pool(t, w.pg.WriterURL), lease.Grant, func(pgx.Tx) error { return nil })
	if stale, ok := errors.AsType[*fence.StaleError](err); !ok || !stale.Ended {
		t.Errorf("%v; want a StaleError of a grant that has ended", err)
	}
}

// No lease is given while a writer with the older grant may still commit.
func TestAWriterInFlightIsDrainedBeforeTheLeaseIsGiven(t *testing.T) {
	t.Parallel()
	w := setup(t)
	old := w.take(t, "r", ttl)
	tx := writing(t, w.pg.WriterURL, old.Grant)
	if err := w.Release(t.Context(), old.Ref()); err != nil {
		t.Fatal(err)
	}
	w.take(t, "r", ttl)
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("a transaction under the older grant was committed after the lease was given to another")
	}
}

func TestWhatCannotBeDrainedGivesNoLease(t *testing.T) {
	t.Parallel()
	w := setup(t)
	old := w.take(t, "r", ttl)
	tx := writing(t, w.pg.URL, old.Grant) // a superuser's session, which the fence's owner may not terminate
	if err := w.Release(t.Context(), old.Ref()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: ttl}); !errors.Is(err, fence.ErrUndrained) {
		t.Fatalf("%v; want ErrUndrained", err)
	}
	until(t, "the resource is given back", func() bool {
		ins, err := leasing.One(w.Inspect(t.Context(), "r"))
		return err == nil && !ins.Locked
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if next := w.take(t, "r", ttl); next.Grant.Token <= old.Grant.Token+1 {
		t.Errorf("token %d after %d and the one that was not given", next.Grant.Token, old.Grant.Token)
	}
}

func TestConnectionsThatBrokeAreReplaced(t *testing.T) {
	t.Parallel()
	w := setup(t)
	p := pool(t, w.locker)
	w.Source = source(t, pglock.Config{Pool: p})
	pglock.GiveTime(w.Source)
	lease := w.take(t, "r", ttl)
	end := func() { // all sessions that the pool may have
		conns := make([]*pgxpool.Conn, p.Config().MaxConns)
		for i := range conns {
			var err error
			if conns[i], err = p.Acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for _, conn := range conns {
			conn.Release()
		}
		w.exec(t, `SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	}
	end()
	if _, err := w.Extend(t.Context(), lease.Ref(), ttl); err != nil {
		t.Errorf("extend: %v", err)
	}
	end()
	if err := w.Release(t.Context(), lease.Ref()); err != nil {
		t.Errorf("release: %v", err)
	}
	end()
	if next := w.take(t, "r", ttl); next.Grant.Token <= lease.Grant.Token {
		t.Errorf("token %d after %d", next.Grant.Token, lease.Grant.Token)
	}
}

// The same owner repeats a call whose answer was lost.
func TestAskingAgainFindsTheLease(t *testing.T) {
	t.Parallel()
	w := setup(t)
	const sql = `SELECT token FROM fence.take_lease('r', 'me', 60000000, sha256('seal'), '', false)`
	first := ask[int64](t, w, sql)
	if again := ask[int64](t, w, sql); again != first {
		t.Errorf("token %d, and then %d", first, again)
	}
	if taken := ask[bool](t, w, `SELECT taken FROM fence.take_lease('r', 'you', 60000000, sha256('another'), '', false)`); taken {
		t.Error("another has it too")
	}
}

// hold is the time of one lease, from its acquisition until it was given up.
type hold struct {
	token    fence.Token
	from, to time.Time
}

// Leases of racing processes never overlap, and their tokens rise, even if holders vanish and leases expire.
func TestRacingProcessesHaveOneHolderAtATime(t *testing.T) {
	t.Parallel()
	w := setup(t)
	var mu sync.Mutex
	holds := map[string][]hold{}
	var done sync.WaitGroup
	for range 3 {
		s := w.process(t)
		for range 4 {
			done.Go(func() {
				for range 12 {
					r := leasing.Request{Resource: []string{"a", "b"}[rand.N(2)], TTL: leasing.MinTTL}
					lease, err := leasing.One(s.Acquire(t.Context(), leasing.UntilDone, r))
					h := hold{token: lease.Grant.Token, from: time.Now(), to: lease.Deadline.Time()}
					if errors.Is(err, leasing.ErrLost) { // the machine is busy
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					if rand.N(4) > 0 { // otherwise the holder vanishes
						if now := time.Now(); now.Before(h.to) {
							h.to = now
						}
						if err := s.Release(t.Context(), lease.Ref()); err != nil && !errors.Is(err, leasing.ErrLost) {
							t.Error(err)
						}
					}
					mu.Lock()
					holds[r.Resource] = append(holds[r.Resource], h)
					mu.Unlock()
				}
			})
		}
	}
	done.Wait()
	for resource, all := range holds {
		byToken := map[fence.Token]bool{}
		for _, h := range all {
			if byToken[h.token] {
				t.Errorf("%s: token %d twice", resource, h.token)
			}
			byToken[h.token] = true
			for _, o := range all {
				if o.token > h.token && o.from.Before(h.to) {
					t.Errorf("%s: token %d was had %v before %d was given up", resource, o.token, h.to.Sub(o.from), h.token)
				}
			}
		}
	}
}
