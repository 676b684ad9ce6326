package pgfence_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// retire examines every fence once.
func (w world) retire(t testing.TB, unused time.Duration) (all pgfence.Retired) {
	t.Helper()
	for more := true; more; more = all.Next != "" {
		r, err := w.fence.Retire(t.Context(), unused, all.Next)
		if err != nil {
			t.Fatal(err)
		}
		all.Fences += r.Fences
		all.Unended = append(all.Unended, r.Unended...)
		all.Next = r.Next
	}
	return all
}

// retireOrders ends and retires a grant of [orders].
func (w world) retireOrders(t testing.TB, token fence.Token) fence.Grant {
	t.Helper()
	g := w.acquire(t, orders, token)
	w.end(t, g)
	if r := w.retire(t, 0); r.Fences != 1 || len(r.Unended) > 0 {
		t.Fatalf("retired %+v", r)
	}
	if n := value[int](t, w, `SELECT (SELECT count(*) FROM fence.resources) + (SELECT count(*) FROM fence.arms)`); n != 0 {
		t.Fatalf("%d rows are left", n)
	}
	return g
}

// neighbour is another name in the same bucket, so with the same floor.
func (w world) neighbour(t testing.TB, of string) string {
	t.Helper()
	return value[string](t, w, `SELECT n FROM generate_series(1, 1000000) i, concat('neighbours/', i) n
		WHERE fence.bucket_of(n) = fence.bucket_of($1) LIMIT 1`, of)
}

func TestARetiredFenceRefusesItsStaleTokens(t *testing.T) {
	t.Parallel()
	w := setup(t)
	old := w.acquire(t, orders, 33)
	ended := w.retireOrders(t, 34)
	conn := w.session(t)
	refused := func(when string) {
		t.Helper()
		for _, level := range levels {
			for _, token := range []string{old.Presented(), ended.Presented(), "34." + sealA, "1"} {
				err := pgfence.Translate(attempt(t, conn, level, orders, token))
				if !errors.Is(err, fence.ErrStale) && !errors.Is(err, fence.ErrNeverIssued) {
					t.Errorf("%s: %s: %v", when, level, err)
				}
			}
		}
	}
	refused("retired")
	var stale *fence.StaleError
	if err := pgfence.Translate(attempt(t, conn, pgx.ReadCommitted, orders, ended.Presented())); !errors.As(err, &stale) || stale.Recorded != 34 {
		t.Errorf("a retired grant: %v", err)
	}
	if err := attempt(t, conn, pgx.ReadCommitted, orders, "35."+sealA); !errors.Is(pgfence.Translate(err), fence.ErrNeverIssued) {
		t.Errorf("a token above the floor: %v", err)
	}

	// A source of tokens that lost its counters gets the floor from the error.
	for _, resource := range []string{orders, w.neighbour(t, orders)} {
		for _, token := range []fence.Token{1, 33, 34} {
			var low *fence.NotRaisedError
			err := w.fence.Arm(t.Context(), arming(fence.Grant{Resource: resource, Token: token, Seal: fence.NewSeal()}))
			if !errors.As(err, &low) || low.Recorded != 34 {
				t.Errorf("arm %s to %d: %v", resource, token, err)
			}
		}
	}
	_, armings := grantsOf(34, "users/7", orders)
	var low *fence.NotRaisedError
	if err := w.fence.Arm(t.Context(), armings...); !errors.As(err, &low) || low.Resource != orders || low.Recorded != 34 {
		t.Errorf("arm all: %v", err)
	}
	if n := value[int](t, w, `SELECT (SELECT count(*) FROM fence.resources) + (SELECT count(*) FROM fence.arms)`); n != 0 {
		t.Errorf("%d rows were made without effect", n)
	}
	if err := attempt(t, conn, pgx.ReadCommitted, orders, w.acquire(t, orders, 35).Presented()); err != nil {
		t.Errorf("a new grant: %v", err)
	}
	refused("acquired again")
}

func TestWhatIsInUseIsNotRetired(t *testing.T) {
	t.Parallel()
	for name, use := range map[string]func(t *testing.T, w world){
		"held":         func(t *testing.T, w world) { w.acquire(t, orders, 34) },
		"ended lately": func(t *testing.T, w world) { w.end(t, w.acquire(t, orders, 34)) },
		"a writer of the ended grant": func(t *testing.T, w world) {
			g := w.acquire(t, orders, 34)
			paused(t, w, pgx.ReadCommitted, g)
			w.end(t, g)
			w.exec(t, longAgo)
		},
		"a writer of an older grant": func(t *testing.T, w world) {
			paused(t, w, pgx.ReadCommitted, w.acquire(t, orders, 34))
			g := fence.Grant{Resource: orders, Token: 35, Seal: fence.NewSeal()}
			w.exec(t, `SELECT fence.raise($1, 35, $2, '')`, orders, g.Seal.Hash())
			w.end(t, g)
			w.exec(t, longAgo)
		},
		"a prepared transaction": func(t *testing.T, w world) {
			g := w.acquire(t, orders, 34)
			gid := prepare(t, paused(t, w, pgx.ReadCommitted, g))
			t.Cleanup(func() { _, _ = w.admin.Exec(context.WithoutCancel(t.Context()), `ROLLBACK PREPARED '`+gid+`'`) })
			w.end(t, g)
			w.exec(t, longAgo)
		},
		"another has the turn": func(t *testing.T, w world) {
			w.end(t, w.acquire(t, orders, 34))
			w.exec(t, longAgo)
			conn := connect(t, w.pg.URL)
			for _, sql := range []string{`BEGIN`, `SELECT FROM fence.arms FOR UPDATE`} {
				if _, err := conn.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
		},
		"takes unsealed tokens": func(t *testing.T, w world) {
			w.end(t, w.acquire(t, orders, 34))
			w.exec(t, longAgo)
			w.exec(t, `INSERT INTO fence.unsealed VALUES ('orders/*')`)
		},
		"an unsealed token": func(t *testing.T, w world) {
			w.exec(t, `INSERT INTO fence.resources (resource, token, holder, armed_at, ended_at) VALUES ($1, 34, '', 'epoch', 'epoch')`, orders)
			w.exec(t, `INSERT INTO fence.arms VALUES ($1)`, orders)
		},
		"a token that leaves no room above it": func(t *testing.T, w world) {
			w.end(t, w.acquire(t, orders, 1<<52))
			w.exec(t, longAgo)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			use(t, w)
			if r := w.retire(t, time.Hour); r.Fences != 0 || len(r.Unended) > 0 {
				t.Errorf("retired %+v", r)
			}
			if n := value[int](t, w, `SELECT (SELECT count(*) FROM fence.resources) - (SELECT count(*) FROM fence.floors)`); n != 1 {
				t.Errorf("fences less floors: %d", n)
			}
		})
	}
}

const longAgo = `UPDATE fence.resources SET ended_at = 'epoch'`

func TestRetireNamesWhatNobodyHasEnded(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.acquire(t, "users/1", 1)
	w.acquire(t, orders, 1)
	w.exec(t, `UPDATE fence.resources SET armed_at = 'epoch'`)
	if r := w.retire(t, time.Hour); r.Fences != 0 || !slices.Equal(r.Unended, []string{orders, "users/1"}) {
		t.Errorf("%+v", r)
	}
	w.end(t, fence.Grant{Resource: orders, Token: 1})
	if r := w.retire(t, 0); r.Fences != 1 || !slices.Equal(r.Unended, []string{"users/1"}) {
		t.Errorf("one has ended: %+v", r)
	}
	w.exec(t, `SELECT fence.invalidate_all()`) // raises to an unknown seal
	if r := w.retire(t, 0); r.Fences != 1 || len(r.Unended) > 0 {
		t.Errorf("after invalidate_all: %+v", r)
	}
	if floors := value[[]int64](t, w, `SELECT array_agg(floor) FROM fence.floors`); !slices.Equal(floors, []int64{1<<32 + 1, 1<<32 + 1}) {
		t.Errorf("floors %d", floors)
	}
	if epoch := value[int64](t, w, `SELECT epoch FROM fence.epochs`); epoch < 1 {
		t.Errorf("epoch %d", epoch)
	}
}

// A transaction whose snapshot is older than the retirement is stale.
func TestAnOldSnapshotOfARetiredFenceIsStale(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		for name, again := range map[string]bool{"retired": false, "and acquired again": true} {
			t.Run(fmt.Sprint(level, " ", name), func(t *testing.T) {
				t.Parallel()
				w := setup(t)
				g := w.acquire(t, orders, 34)
				tx := begin(t, w.session(t), level, g)
				if _, err := tx.Exec(t.Context(), `SELECT 1`); err != nil {
					t.Fatal(err)
				}
				w.end(t, g)
				w.retire(t, 0)
				if again {
					w.acquire(t, orders, 35)
				}
				if err := pgfence.Translate(write(t.Context(), tx, 34)); !errors.Is(err, fence.ErrStale) {
					t.Errorf("%v", err)
				}
			})
		}
	}
}

// Floors that rise after a pattern was added do not apply to its tokens, because their issuer can't go above a floor.
func TestTheFloorOfUnsealedTokensIsThatOfTheirPattern(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `INSERT INTO fence.unsealed VALUES ('neighbours/*')`)
	w.retireOrders(t, 34)
	w.exec(t, `INSERT INTO fence.unsealed VALUES ('orders/*')`)
	name := w.neighbour(t, orders)
	conn := w.session(t)
	check := func(resource, token string) error {
		_, err := conn.Exec(t.Context(), `SELECT fence.use($1, $2)`, resource, token)
		return pgfence.Translate(err)
	}
	if err := check(name, "1"); err != nil {
		t.Errorf("a pattern from before: %v", err)
	}
	var stale *fence.StaleError
	if err := check(orders, "34"); !errors.As(err, &stale) || stale.Recorded != 34 {
		t.Errorf("a pattern from after, at the floor: %v", err)
	}
	if err := check(orders, "35"); err != nil {
		t.Errorf("above the floor: %v", err)
	}
}

// A raise that waits for the turn of a fence that is being retired reads the floor after the wait.
func TestARaiseThatWaitedForRetirementSeesTheFloor(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.end(t, w.acquire(t, orders, 34))
	retiring, err := connect(t, w.pg.GatewayURL).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := retiring.Exec(t.Context(), `SELECT fence.retire('0')`); err != nil {
		t.Fatal(err)
	}
	g := fence.Grant{Resource: orders, Token: 34, Seal: fence.NewSeal()}
	armed := make(chan error, 1)
	go func() { armed <- w.fence.Arm(t.Context(), arming(g)) }()
	w.waitFor(t, "the raise waits", `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted)`)
	if err := retiring.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	var low *fence.NotRaisedError
	if err := <-armed; !errors.As(err, &low) || low.Recorded != 34 {
		t.Errorf("%v", err)
	}
	if n := value[int](t, w, `SELECT count(*) FROM fence.arms`); n > 1 {
		t.Errorf("%d turns", n)
	}
}

func TestRetireRefusesNonsense(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.end(t, w.acquire(t, orders, 34))
	for _, sql := range []string{
		`SELECT fence.retire(NULL)`, `SELECT fence.retire('-1 s')`, `SELECT fence.retire('0', NULL)`,
		`SELECT fence.retire('0', '', 0)`, `SELECT fence.retire('0', '', 1001)`, `SELECT fence.retire('0', '', NULL)`,
	} {
		_, err := connect(t, w.pg.GatewayURL).Exec(t.Context(), sql)
		wantCode(t, err, "22023")
	}
	_, err := connect(t, w.pg.GatewayURL, "-c default_transaction_isolation=serializable").Exec(t.Context(), `SELECT fence.retire('0')`)
	wantCode(t, err, "25000")
	_, err = w.session(t).Exec(t.Context(), `SELECT fence.retire('0')`)
	wantCode(t, err, "42501")
	if n := value[int](t, w, `SELECT count(*) FROM fence.resources`); n != 1 {
		t.Errorf("%d fences", n)
	}
}

func TestNamesUsedOnceLeaveNoRowsButFloors(t *testing.T) {
	t.Parallel()
	w := setup(t)
	const names = 5000
	w.exec(t, `SELECT fence.raise(concat('once/', i), 1 + i % 7, sha256(concat('seal', i)::bytea), '') FROM generate_series(1, $1::int) i`, names)
	w.exec(t, `UPDATE fence.resources SET ended_at = now()`)
	if r := w.retire(t, 0); r.Fences != names {
		t.Errorf("%d of %d were retired", r.Fences, names)
	}
	if n := value[int](t, w, `SELECT (SELECT count(*) FROM fence.resources) + (SELECT count(*) FROM fence.arms)`); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	if n := value[int](t, w, `SELECT count(*) FROM fence.floors`); n == 0 || n > 4096 {
		t.Errorf("%d floors", n)
	}
	if text := value[string](t, w, `SELECT string_agg(DISTINCT floor::text, ' ') FROM fence.floors`); strings.Contains(text, "8") {
		t.Errorf("floors %s", text)
	}
}

// A source that starts above the floor arms at the first attempt.
func TestSourcesLearnFloors(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.retireOrders(t, 34)
	name := w.neighbour(t, orders)
	if floor := w.fence.Floor(name); floor != 0 {
		t.Errorf("before anybody asked: %d", floor)
	}
	g := fence.Grant{Resource: orders, Token: 1, Seal: fence.NewSeal()}
	if err := w.fence.Arm(t.Context(), arming(g)); !errors.Is(err, fence.ErrNotRaised) {
		t.Fatal(err)
	}
	for resource, want := range map[string]fence.Token{orders: 34, name: 34, "users/7": 0} {
		if floor := w.fence.Floor(resource); floor != want {
			t.Errorf("%s: floor %d, want %d", resource, floor, want)
		}
	}
}

// A retirement waits at most a second for a lock on fence.unsealed, and does not make others wait for it.
func TestRetireGivesUpWherePatternsAreLocked(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.end(t, w.acquire(t, orders, 34))
	allowing, err := connect(t, w.pg.URL).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := allowing.Exec(t.Context(), `INSERT INTO fence.unsealed VALUES ('jobs/*')`); err != nil {
		t.Fatal(err)
	}
	_, err = w.fence.Retire(t.Context(), 0, "")
	wantCode(t, err, "55P03")
	w.exec(t, `SELECT fence.invalidate_all()`)
	if err := allowing.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := w.retire(t, 0); r.Fences != 1 {
		t.Errorf("%+v", r)
	}
}

// An arm waits for the transaction that retires its name, so such a transaction ends after 4 ms, however slow the
// machine.
func TestASlowRetirementEndsEarlyAndTheNextGoesOn(t *testing.T) {
	t.Parallel()
	w := setup(t)
	const names = 5
	for i := range names {
		w.end(t, w.acquire(t, fmt.Sprintf("orders/%d", i), 34))
	}
	mutateFunction(t, w, "fence.retire", `interval '4 ms'`, `interval '0'`)
	var calls, retired int
	for after, more := "", true; more; calls++ {
		r, err := w.fence.Retire(t.Context(), 0, after)
		if err != nil {
			t.Fatal(err)
		}
		if r.Fences > 1 {
			t.Errorf("behind %q: %d were retired without time for more than one", after, r.Fences)
		}
		retired += r.Fences
		after, more = r.Next, r.Next != ""
	}
	if retired != names || calls != names {
		t.Errorf("%d of %d retired, in %d calls", retired, names, calls)
	}
}
