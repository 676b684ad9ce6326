package pgfence_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// Ends that arrive while a group is in progress form the next group.
func TestEndsGoInGroups(t *testing.T) {
	t.Parallel()
	const n = 100
	w := setup(t)
	grants := make([]fence.Grant, n)
	for i := range grants {
		grants[i] = w.acquire(t, fmt.Sprintf("many/%d", i), 1)
	}
	block, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := block.Exec(t.Context(), `LOCK TABLE fence.arms IN EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	errs := make([]error, n+1)
	end := func(i int, e fence.Ending) {
		wg.Go(func() { errs[i] = w.fence.End(t.Context(), e) })
	}
	end(0, ending(grants[0]))
	w.waitFor(t, "the first is on its way", `SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'fence.arms'::regclass AND NOT granted)`)
	for i := 1; i < n; i++ {
		end(i, ending(grants[i]))
	}
	end(n, fence.Ending{Resource: grants[5].Resource, Token: 1}) // a repetition
	w.queued(t, w.fence, n)
	if err := block.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	ended := value[int](t, w, `SELECT count(*) FROM fence.resources WHERE ended_at IS NOT NULL`)
	if groups := value[int](t, w, `SELECT count(DISTINCT xmin::text) FROM fence.resources WHERE ended_at IS NOT NULL`); ended != n || groups != 3 {
		t.Errorf("%d ended, in %d transactions; want %d, in 1 and then 64 and the rest", ended, groups, n)
	}
}

// Ending keeps the row on its page and leaves nothing that would send the next holder's checks to the slow path.
func TestEndingIsAHOTUpdate(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for token := fence.Token(1); token < 20; token++ {
		g := w.acquire(t, orders, token)
		tx, err := w.admin.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var hot bool
		if _, err = tx.Exec(t.Context(), `SELECT fence.end_grants(ARRAY[$1::text], ARRAY[$2::bigint], ARRAY[$3::bytea])`, orders, int64(token), g.Seal.Hash()); err == nil {
			err = tx.QueryRow(t.Context(), `SELECT pg_stat_get_xact_tuples_hot_updated('fence.resources'::regclass) = pg_stat_get_xact_tuples_updated('fence.resources'::regclass)
				AND pg_stat_get_xact_tuples_updated('fence.resources'::regclass) > 0`).Scan(&hot)
		}
		if err := errors.Join(err, tx.Commit(t.Context())); err != nil || !hot {
			t.Fatalf("token %d: hot %t, %v", token, hot, err)
		}
		if !value[bool](t, w, `SELECT xmax = '0'::xid FROM fence.resources`) {
			t.Fatalf("token %d: the row has an xmax", token)
		}
	}
}

// Wherever the connection breaks, the result of End is true, and the next holder is not affected.
func TestAnUnknownEndHarmsNobody(t *testing.T) {
	t.Parallel()
	w := setup(t)
	seen := map[bool]int{}
	for step := 1; step <= 8; step++ {
		g := w.acquire(t, orders, fence.Token(2*step))
		var f fault
		pool := f.pool(t, w.pg.GatewayURL, "ends")
		if err := pool.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.set(step, func(conn net.Conn) { _ = conn.Close() })
		err := pgfence.New(pool).End(t.Context(), ending(g))
		pool.Close()
		w.waitFor(t, "the server has noticed", nobodyIs, "ends")
		ended := value[bool](t, w, `SELECT ended_at IS NOT NULL FROM fence.resources`)
		switch {
		case err == nil && !ended:
			t.Errorf("step %d: said ended, and it is not", step)
		case err != nil && !errors.Is(err, fence.ErrUnknown):
			t.Errorf("step %d: %v", step, err)
		}
		seen[ended]++
		next := w.acquire(t, orders, fence.Token(2*step+1))
		if err := attempt(t, w.session(t), pgx.ReadCommitted, orders, next.Presented()); err != nil {
			t.Errorf("step %d: the next holder: %v", step, err)
		}
	}
	t.Log(seen)
}

// If a caller stops waiting, its end may still happen, and does not delay others.
func TestACallerLeavesAnEndThatTakesLong(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	block, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := block.Exec(t.Context(), `LOCK TABLE fence.arms IN EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		ended := later(func() error { return w.fence.End(ctx, ending(g)) })
		w.waitFor(t, "it is on its way", isBlocked)
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) || !errors.Is(err, fence.ErrUnknown) {
			t.Errorf("%v; want an unknown outcome", err)
		}
		w.waitFor(t, "it has given up", `SELECT NOT (`+strings.TrimPrefix(isBlocked, "SELECT ")+`)`)
	}
	if err := block.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.end(t, g)
}

// A call does not wait beyond its context for a pool without a free connection.
func TestEndWithoutAConnection(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	pool := poolWith(t, w.pg.GatewayURL, func(c *pgxpool.Config) { c.MaxConns = 1 })
	held, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := pgfence.New(pool).End(ctx, ending(g)); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	held.Release()
}

// If the next holder arms before the end is committed, it waits for its turn, and its grant is current.
func TestArmingWaitsForAnEnd(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	other := connect(t, w.pg.GatewayURL)
	tx, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT fence.end_grants(ARRAY['orders/1001'], ARRAY[34], ARRAY[NULL::bytea])`); err != nil {
		t.Fatal(err)
	}
	if err := attempt(t, w.session(t), pgx.RepeatableRead, orders, g.Presented()); err != nil {
		t.Errorf("before its commit the grant is current: %v", err)
	}
	next := fence.Grant{Resource: orders, Token: 35, Seal: fence.NewSeal()}
	armed := later(func() error { return w.fence.Arm(t.Context(), arming(next)) })
	w.waitFor(t, "arm waits its turn", `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
		AND wait_event_type = 'Lock' AND query LIKE '%fence.raise%')`)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-armed; err != nil {
		t.Fatal(err)
	}
	for _, level := range levels {
		if err := attempt(t, w.session(t), level, orders, next.Presented()); err != nil {
			t.Errorf("%s: %v", level, err)
		}
	}
	if err := w.fence.End(t.Context(), ending(g)); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a late end: %v", err)
	}
}

// In a group each end has the same result as alone, and one that would have to wait for its turn does not delay the
// others.
func TestEachEndOfAGroupHasItsOwnAnswer(t *testing.T) {
	t.Parallel()
	w := setup(t)
	seals := map[string]fence.Seal{}
	for _, name := range []string{"bytoken", "busy", "ended", "foreign", "late", "mine", "twice"} {
		seals[name] = w.acquire(t, name, 5).Seal
	}
	w.end(t, fence.Grant{Resource: "ended", Token: 5, Seal: seals["ended"]})
	block, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := block.Exec(t.Context(), `SELECT FROM fence.arms WHERE resource IN ('busy', 'ended') FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	foreign := fence.NewSeal()
	type one struct {
		resource string
		token    int64
		hash     []byte
		want     string
	}
	all := []one{
		{"twice", 5, nil, "ended 5"},
		{"mine", 5, seals["mine"].Hash(), "ended 5"},
		{"bytoken", 5, nil, "ended 5"},
		{"busy", 5, nil, "busy 5"},
		{"ended", 5, nil, "ended 5"},
		{"foreign", 5, foreign.Hash(), "neither 5"},
		{"late", 4, nil, "neither 5"},
		{"nothing", 1, nil, "neither 0"},
		{"twice", 5, nil, "ended 5"},
		{"twice", 4, nil, "neither 5"},
	}
	var resources []string
	var tokens []int64
	var hashes [][]byte
	for _, a := range all {
		resources, tokens, hashes = append(resources, a.resource), append(tokens, a.token), append(hashes, a.hash)
	}
	rows, err := w.admin.Query(t.Context(), `SELECT CASE WHEN ended THEN 'ended' WHEN busy THEN 'busy' ELSE 'neither' END || ' ' || coalesce(recorded, 0)
		FROM fence.end_grants($1, $2, $3) ORDER BY n`, resources, tokens, hashes)
	if err != nil {
		t.Fatal(err)
	}
	answers, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(answers) != len(all) {
		t.Fatalf("%q, %v", answers, err)
	}
	for i, a := range all {
		if answers[i] != a.want {
			t.Errorf("%s at token %d: %s; want %s", a.resource, a.token, answers[i], a.want)
		}
	}
	if err := block.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	const over = `SELECT string_agg(resource, ' ' ORDER BY resource) FROM fence.resources WHERE ended_at IS NOT NULL`
	if is := value[string](t, w, over); is != "bytoken ended mine twice" {
		t.Errorf("ended are %s", is)
	}
}
