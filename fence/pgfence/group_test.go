package pgfence_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// block blocks changes of fences until the returned function is called.
func (w world) block(t testing.TB) (release func()) {
	t.Helper()
	tx, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK TABLE fence.arms IN EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

const isBlocked = `SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'fence.arms'::regclass AND NOT granted)`

// queued waits until n calls wait for the previous group.
func (w world) queued(t testing.TB, f *pgfence.Fence, n int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); pgfence.Waiting(f) < n; {
		if time.Now().After(deadline) {
			t.Fatalf("%d calls wait, not %d", pgfence.Waiting(f), n)
		}
		w.waitFor(t, "time passes", `SELECT pg_sleep(0.002) IS NOT NULL`)
	}
}

// together arms all as one group, queued behind another group, and returns each call's result.
func (w world) together(t testing.TB, f *pgfence.Fence, all ...fence.Arming) []<-chan error {
	t.Helper()
	release := w.block(t)
	first := later(func() error {
		return f.Arm(t.Context(), fence.Arming{Resource: "first", Token: 1 + fence.Token(time.Now().UnixNano()), SealHash: fence.NewSeal().Hash()})
	})
	w.waitFor(t, "the first is on its way", isBlocked)
	var results []<-chan error
	for i, a := range all {
		results = append(results, later(func() error { return f.Arm(t.Context(), a) }))
		w.queued(t, f, i+1) // in this order
	}
	release()
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	return results
}

// some are n resources, armed at token.
func (w world) some(t testing.TB, n int, token fence.Token) []fence.Arming {
	t.Helper()
	all := next(n, token)
	for _, a := range all {
		if err := w.fence.Arm(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// next has armings of the same resources.
func next(n int, token fence.Token) []fence.Arming {
	all := make([]fence.Arming, n)
	for i := range all {
		all[i] = fence.Arming{Resource: fmt.Sprintf("many/%03d", i), Token: token, SealHash: fence.NewSeal().Hash(), Holder: "test"}
	}
	return all
}

const (
	transactions = `SELECT count(DISTINCT xmin::text) FROM fence.resources WHERE resource LIKE 'many/%' AND token = $1`
	armedTo      = `SELECT count(*) FROM fence.resources WHERE resource LIKE 'many/%' AND token = $1 AND undrained = '{}'`
)

func TestArmsGoInGroups(t *testing.T) {
	t.Parallel()
	const n = 100
	w := setup(t)
	for i, what := range []string{"new names", "names that are there"} {
		token := fence.Token(i + 1)
		for _, result := range w.together(t, w.fence, next(n, token)...) {
			if err := <-result; err != nil {
				t.Error(err)
			}
		}
		if armed, groups := value[int](t, w, armedTo, token), value[int](t, w, transactions, token); armed != n || groups < 2 || groups > 4 { // on a busy machine some calls arrive after the first group
			t.Errorf("%s: %d armed, in %d transactions; want %d, in 64 and the rest, or little more", what, armed, groups, n)
		}
	}
	if !value[bool](t, w, `SELECT bool_and(xmax = '0'::xid) FROM fence.resources`) {
		t.Error("a group leaves an xmax behind, which sends checks at REPEATABLE READ down the slow path")
	}
}

// Each call in a group gets the result for its own fence.
func TestAGroupIsNotFailedByOneOfIts(t *testing.T) {
	t.Parallel()
	w := setup(t, pgfence.WithGrace(time.Minute), pgfence.WithDrainLimit(time.Minute))
	before := w.some(t, 6, 5)
	all := next(6, 6)
	all[1].Token = 4                     // stale
	all[2] = before[2]                   // a repetition, as after a lost answer
	all[3].SealHash = before[3].SealHash // a seal that was used
	all[4].Resource = orders             // a writer is in flight
	all[5].SealHash = nil                // unsealed
	old := w.acquire(t, orders, 5)
	tx := paused(t, w, pgx.ReadCommitted, old)

	results := w.together(t, w.fence, all...)
	for i, want := range map[int]func(error) bool{
		0: func(err error) bool { return err == nil },
		1: func(err error) bool {
			var not *fence.NotRaisedError
			return errors.As(err, &not) && not.Recorded == 5 && not.Offered == 4 && !errors.Is(err, fence.ErrUnknown)
		},
		2: func(err error) bool { return err == nil },
		3: func(err error) bool { return err != nil && strings.Contains(err.Error(), "seal was used") },
		5: func(err error) bool { return err == nil },
	} {
		if err := <-results[i]; !want(err) {
			t.Errorf("%d: %v", i, err)
		}
	}
	select {
	case err := <-results[4]:
		t.Errorf("armed over a writer in flight: %v", err)
	default:
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Errorf("within its grace: %v", err)
	}
	if err := <-results[4]; err != nil {
		t.Error(err)
	}
}

// Nothing in a group waits, not even for a transaction that creates the same resource's first row.
func TestAGroupWaitsForNobody(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `INSERT INTO fence.unsealed (pattern) VALUES ('many/003')`)
	other, writer := connect(t, w.pg.GatewayURL), w.session(t)
	raising, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := raising.Exec(t.Context(), `SELECT fence.raise('many/001', 1, NULL, '')`); err != nil {
		t.Fatal(err)
	}
	unsealed, err := writer.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unsealed.Exec(t.Context(), `SELECT fence.use('many/003', '1')`); err != nil {
		t.Fatal(err)
	}
	var resources []string
	var tokens []int64
	var hashes [][]byte
	for _, a := range next(5, 2) {
		resources, tokens, hashes = append(resources, a.Resource), append(tokens, int64(a.Token)), append(hashes, a.SealHash)
	}
	armed := value[[]bool](t, w, `SELECT fence.arm_group($1, $2, $3, $1)`, resources, tokens, hashes)
	if want := []bool{true, false, true, false, true}; !slices.Equal(armed, want) {
		t.Errorf("armed %v, want %v", armed, want)
	}
	if err := errors.Join(raising.Commit(t.Context()), unsealed.Commit(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// A foreign lock on a new name does not delay the group either.
func TestAStrangerDoesNotHoldUpAGroup(t *testing.T) {
	t.Parallel()
	w := setup(t)
	stranger := connect(t, w.pg.WriterURL)
	if _, err := stranger.Exec(t.Context(), `SELECT pg_advisory_lock(hashtextextended('many/001', 1717920357))`); err != nil {
		t.Fatal(err)
	}
	for i, result := range w.together(t, w.fence, next(3, 1)...) {
		if err := <-result; err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// Two gateways that arm the same resources, in any order, never wait for each other.
func TestGroupsOfTwoGatewaysMakeNoDeadlock(t *testing.T) {
	t.Parallel()
	const n, rounds = 40, 12
	w := setup(t)
	var wg sync.WaitGroup
	for gateway := range 2 {
		f := pgfence.New(poolWith(t, w.pg.GatewayURL, func(c *pgxpool.Config) { c.MaxConns = 6 }))
		pgfence.GiveTime(f)
		for i := range n {
			wg.Go(func() {
				at := i
				if gateway == 1 {
					at = n - 1 - i
				}
				for round := range rounds {
					a := fence.Arming{Resource: fmt.Sprintf("many/%03d", at), Token: fence.Token(2*round + gateway + 1), SealHash: fence.NewSeal().Hash()}
					if err := f.Arm(t.Context(), a); err != nil && !errors.Is(err, fence.ErrNotRaised) {
						t.Error(err)
					}
				}
			})
		}
	}
	all := later(func() error { // and a call that arms several in one transaction
		for round := range rounds {
			if err := w.fence.Arm(t.Context(), next(n, fence.Token(2*round+2))...); err != nil && !errors.Is(err, fence.ErrNotRaised) {
				return err
			}
		}
		return nil
	})
	wg.Wait()
	if err := <-all; err != nil {
		t.Error(err)
	}
	if n := value[int](t, w, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// A caller that stops waiting before its group is sent was never armed. After that it may have been, and the group
// continues.
func TestACallerLeavesItsGroup(t *testing.T) {
	t.Parallel()
	w := setup(t)
	release := w.block(t)
	all := next(4, 1)
	var results [4]<-chan error
	var leave [4]context.CancelFunc
	arm := func(i int) {
		ctx, cancel := context.WithCancel(t.Context())
		defer t.Cleanup(cancel)
		leave[i] = cancel
		results[i] = later(func() error { return w.fence.Arm(ctx, all[i]) })
	}
	arm(0)
	w.waitFor(t, "the first is on its way", isBlocked)
	arm(1)
	arm(2)
	w.queued(t, w.fence, 2)
	leave[0]()
	if err := <-results[0]; !errors.Is(err, context.Canceled) { // not unknown if PostgreSQL has said that it was not done
		t.Errorf("alone on its way: %v", err)
	}
	w.waitFor(t, "the group is on its way", isBlocked+` AND (SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%arm_group%' AND datname = current_database())`)
	arm(3)
	w.queued(t, w.fence, 1)
	leave[3]()
	if err := <-results[3]; errors.Is(err, fence.ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Errorf("it still waited: %v", err)
	}
	leave[1]()
	if err := <-results[1]; !errors.Is(err, fence.ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Errorf("in a group on its way: %v", err)
	}
	release()
	if err := <-results[2]; err != nil {
		t.Error(err)
	}
	if got := value[string](t, w, `SELECT string_agg(resource, ' ' ORDER BY resource) FROM fence.resources WHERE resource LIKE 'many/%'`); got != "many/001 many/002" {
		t.Errorf("armed: %s", got)
	}
}
