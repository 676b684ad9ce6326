package pgfence_test

import (
	"context"
	"encoding/json"
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

func ending(g fence.Grant) fence.Ending {
	return fence.Ending{Resource: g.Resource, Token: g.Token, SealHash: g.Seal.Hash()}
}

// end ends a grant.
func (w world) end(t testing.TB, g fence.Grant) {
	t.Helper()
	if err := w.fence.End(t.Context(), ending(g)); err != nil {
		t.Fatalf("end %s: %v", g, err)
	}
}

// checks are the ways on which a grant of [orders] is checked.
var checks = map[string]func(ctx context.Context, w world, tx pgx.Tx, g fence.Grant) error{
	"a guarded write": func(ctx context.Context, _ world, tx pgx.Tx, g fence.Grant) error {
		return cast(ctx, tx, orders, g.Presented(), `INSERT INTO work (token) VALUES (1)`)
	},
	"under a prefix": func(ctx context.Context, _ world, tx pgx.Tx, g fence.Grant) error {
		return cast(ctx, tx, orders, g.Presented(), `INSERT INTO below VALUES (1)`)
	},
	"a row": func(ctx context.Context, _ world, tx pgx.Tx, g fence.Grant) error {
		return cast(ctx, tx, orders, g.Presented(), `INSERT INTO each VALUES (1001)`)
	},
	"an encoded name": func(ctx context.Context, _ world, tx pgx.Tx, g fence.Grant) error {
		return cast(ctx, tx, "orders%2F1001", g.Presented(), `INSERT INTO work (token) VALUES (1)`)
	},
	"the seal without its token": func(ctx context.Context, _ world, tx pgx.Tx, g fence.Grant) error {
		g.Token = 0
		return cast(ctx, tx, orders, g.Presented(), `INSERT INTO work (token) VALUES (1)`)
	},
	"fence.check": func(ctx context.Context, _ world, tx pgx.Tx, g fence.Grant) error {
		return cast(ctx, tx, orders, g.Presented(), `SELECT fence.check()`)
	},
	"fence.use": func(ctx context.Context, _ world, tx pgx.Tx, g fence.Grant) error {
		_, err := tx.Exec(ctx, `SELECT fence.use($1::text, $2::text)`, orders, g.Presented())
		return err
	},
	"fence.use of several": func(ctx context.Context, _ world, tx pgx.Tx, g fence.Grant) error {
		_, err := tx.Exec(ctx, `SELECT fence.use(ARRAY[$1::text], ARRAY[$2::text])`, orders, g.Presented())
		return err
	},
}

// cast writes under settings.
func cast(ctx context.Context, tx pgx.Tx, resource, token, sql string) error {
	if _, err := tx.Exec(ctx, `SELECT set_config('fence.resource', $1, true), set_config('fence.token', $2, true)`, resource, token); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, sql)
	return err
}

// more protects tables of the other kinds.
func (w world) more(t testing.TB) {
	t.Helper()
	w.exec(t, `CREATE TABLE below (id bigint)`)
	w.exec(t, `CREATE TABLE each (id bigint, token bigint)`)
	w.exec(t, `GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC`)
	w.exec(t, `SELECT fence.protect('below', under => 'orders/')`)
	w.exec(t, `SELECT fence.protect('each', per_row => $$'orders/' || id$$, stamp => 'token')`)
}

func TestAnEndedGrantIsRefusedOnEveryWay(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.more(t)
	gateway := connect(t, w.pg.GatewayURL)
	issued := func(ctx context.Context, _ world, _ pgx.Tx, g fence.Grant) error {
		_, err := gateway.Exec(ctx, `SELECT fence.check_issued($1, $2)`, orders, int64(g.Token))
		return err
	}
	try := func(level pgx.TxIsoLevel, way func(context.Context, world, pgx.Tx, fence.Grant) error, g fence.Grant) error {
		tx, err := w.writer.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(t.Context()) }()
		return pgfence.Translate(way(t.Context(), w, tx, g))
	}
	all := map[string]func(context.Context, world, pgx.Tx, fence.Grant) error{"fence.check_issued": issued}
	for name, way := range checks {
		all[name] = way
	}
	g := w.acquire(t, orders, 34)
	each := func(judge func(name string, err error)) {
		for _, level := range levels {
			for name, way := range all {
				judge(fmt.Sprintf("%s, %s", level, name), try(level, way, g))
			}
		}
	}
	each(func(name string, err error) {
		if err != nil {
			t.Errorf("%s, before it ended: %v", name, err)
		}
	})
	w.end(t, g)
	each(func(name string, err error) {
		var stale *fence.StaleError
		if !errors.As(err, &stale) || *stale != (fence.StaleError{Resource: orders, Presented: 34, Recorded: 34, Ended: true}) {
			t.Errorf("%s: %v, %+v", name, err, stale)
			return
		}
		pg := refusalOf(t, err)
		code, _ := fence.CodeOf(err)
		if pg.Message != `the lease of token 34 for "orders/1001" was released` || pg.Message != stale.Error() || pg.Hint != code.Hint ||
			!json.Valid([]byte(pg.Detail)) {
			t.Errorf("%s: %q, %q, %q", name, pg.Message, pg.Detail, pg.Hint)
		}
		hidden(t, pg, g.Seal.Reveal())
	})
	old := g
	g = w.acquire(t, orders, 35)
	each(func(name string, err error) {
		if err != nil {
			t.Errorf("%s, of the next: %v", name, err)
		}
	})
	g = old
	each(func(name string, err error) {
		var stale *fence.StaleError
		if !errors.As(err, &stale) || stale.Ended || stale.Recorded != 35 {
			t.Errorf("%s, once superseded: %v", name, err)
		}
	})
}

// The common case must refuse by itself: what it lets pass no slower check sees.
func TestTheFastCheckKnowsTheEnd(t *testing.T) {
	t.Parallel()
	w := setup(t)
	mutate(t, w, `AND f.ended_at IS NULL`, ``)
	g := w.acquire(t, orders, 34)
	w.end(t, g)
	if err := attempt(t, w.session(t), pgx.ReadCommitted, orders, g.Presented()); err != nil {
		t.Errorf("the mutant refuses, so the tests of the fast check prove nothing: %v", err)
	}
}

func TestEndingTouchesNoOtherGrant(t *testing.T) {
	t.Parallel()
	w := setup(t)
	old := w.acquire(t, orders, 34)
	g := w.acquire(t, orders, 35)
	const version = `SELECT xmin::text FROM fence.resources WHERE resource = 'orders/1001'`
	before := value[string](t, w, version)
	foreign := fence.Grant{Resource: orders, Token: 35, Seal: fence.NewSeal()}
	for name, c := range map[string]struct {
		e    fence.Ending
		want error
	}{
		"superseded":           {ending(old), fence.ErrStale},
		"superseded, by token": {fence.Ending{Resource: orders, Token: 34}, fence.ErrStale},
		"another seal":         {ending(foreign), fence.ErrNeverIssued},
		"a token to come":      {fence.Ending{Resource: orders, Token: 36}, fence.ErrNeverIssued},
		"no fence":             {fence.Ending{Resource: "nothing", Token: 1}, fence.ErrNeverIssued},
		"no token":             {fence.Ending{Resource: orders}, fence.ErrInvalid},
		"a short hash":         {fence.Ending{Resource: orders, Token: 35, SealHash: []byte("short")}, fence.ErrInvalid},
		"a name that can't be": {fence.Ending{Resource: "a*", Token: 35}, fence.ErrInvalid},
	} {
		if err := w.fence.End(t.Context(), c.e); !errors.Is(err, c.want) || errors.Is(err, fence.ErrUnknown) {
			t.Errorf("%s: %v; want %v", name, err, c.want)
		}
	}
	if after := value[string](t, w, version); after != before || value[int](t, w, `SELECT count(*) FROM fence.arms`) != 1 {
		t.Errorf("the fence was changed")
	}
	w.end(t, g)
	before = value[string](t, w, version)
	w.end(t, g)
	if after := value[string](t, w, version); after != before {
		t.Error("ending again has written")
	}
	if n := value[int](t, w, `SELECT undrained FROM fence.fences`); n != 0 {
		t.Errorf("%d keys are undrained", n)
	}
	if err := w.fence.End(t.Context(), fence.Ending{Resource: orders, Token: 35}); err != nil {
		t.Errorf("by token: %v", err)
	}
	record, err := w.fence.Inspect(t.Context(), orders)
	if err != nil || record.Token != 35 || record.EndedAt == nil || record.EndedAt.Before(record.ArmedAt) {
		t.Errorf("%+v, %v", record, err)
	}
	_, err = w.writer.Exec(t.Context(), `SELECT fence.end_grants(ARRAY['orders/1001'], ARRAY[35], ARRAY[NULL::bytea])`)
	wantCode(t, err, "42501")
}

// A grant that has ended is not armed again: that takes a higher token, and whatever raises the fence begins anew.
func TestOnlyANewGrantFollowsAnEndedOne(t *testing.T) {
	t.Parallel()
	for name, raise := range map[string]func(w world, t *testing.T){
		"arm":    func(w world, t *testing.T) { w.acquire(t, orders, 35) },
		"raise":  func(w world, t *testing.T) { w.exec(t, `SELECT fence.raise('orders/1001', 35, sha256('x'), 'h')`) },
		"revoke": func(w world, t *testing.T) { w.exec(t, `SELECT fence.revoke('orders/1001')`) },
		"all":    func(w world, t *testing.T) { w.exec(t, `SELECT fence.invalidate_all()`) },
		"several": func(w world, t *testing.T) {
			armAll(t, w, fence.Grant{Resource: orders, Token: 35, Seal: fence.NewSeal()})
		},
		"unsealed": func(w world, t *testing.T) {
			w.exec(t, `INSERT INTO fence.unsealed VALUES ('orders/*')`)
			if err := attempt(t, w.session(t), pgx.ReadCommitted, orders, "35"); err != nil {
				t.Error(err)
			}
			if err := w.fence.End(t.Context(), fence.Ending{Resource: orders, Token: 35}); err != nil {
				t.Error(err)
			}
			wantCode(t, attempt(t, w.session(t), pgx.ReadCommitted, orders, "35"), "ZF001")
			if err := attempt(t, w.session(t), pgx.ReadCommitted, orders, "36"); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			g := w.acquire(t, orders, 34)
			w.end(t, g)
			for _, err := range []error{w.fence.Arm(t.Context(), arming(g)), w.fence.ArmAll(t.Context(), []fence.Arming{arming(g)})} {
				var low *fence.NotRaisedError
				if !errors.As(err, &low) || low.Recorded != 34 {
					t.Errorf("the same again: %v", err)
				}
			}
			raise(w, t)
			if record, err := w.fence.Inspect(t.Context(), orders); err != nil || record.Token <= 34 || record.EndedAt != nil {
				t.Errorf("%+v, %v", record, err)
			}
		})
	}
}

func armAll(t testing.TB, w world, g fence.Grant) {
	t.Helper()
	if err := w.fence.ArmAll(t.Context(), []fence.Arming{arming(g)}); err != nil {
		t.Error(err)
	}
}

// A transaction that began before the end is refused where it has not passed the check, at each level.
func TestASnapshotFromBeforeTheEndIsStale(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			g := w.acquire(t, orders, 34)
			tx := begin(t, w.session(t), level, g)
			if _, err := tx.Exec(t.Context(), `SELECT 1`); err != nil { // takes the snapshot
				t.Fatal(err)
			}
			w.end(t, g)
			err := write(t.Context(), tx, 34)
			wantCode(t, err, "ZF001")
			if says := refusalOf(t, err).Message; !strings.Contains(says, "released") {
				t.Error(says)
			}
		})
	}
}

// Ending waits for nobody: a writer that has passed the check commits, and its next statement is refused. The next holder drains it.
func TestEndingDrainsNobody(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			g := w.acquire(t, orders, 34)
			commits, writesOn, stays := paused(t, w, level, g), paused(t, w, level, g), paused(t, w, level, g)
			w.end(t, g)
			if err := commits.Commit(t.Context()); err != nil {
				t.Errorf("a writer in flight: %v", err)
			}
			wantCode(t, write(t.Context(), writesOn, 34), "ZF001")
			w.acquire(t, orders, 35)
			if err := stays.Commit(t.Context()); err == nil {
				t.Error("a stale write landed after arm had returned")
			}
		})
	}
}

// With a pause at each point of the check: a write that lands after the end had passed the check before, and none lands once the
// next holder has armed.
func TestNoWriteLandsAfterTheEndAndTheNextArm(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		gate   string
		passes bool // the check had read the fence already
	}{
		"before the lock":       {`IF pg_catalog.strpos(r`, false},
		"between lock and read": {`SELECT f.token`, false},
		"after the read":        {`RETURN recorded`, true},
	} {
		for _, level := range levels {
			t.Run(fmt.Sprintf("%s/%s", name, level), func(t *testing.T) {
				t.Parallel()
				w := setup(t)
				pauseGuard(t, w, c.gate)
				g := w.acquire(t, orders, 34)
				tx := begin(t, w.session(t), level, g)
				open := closeGate(t, w)
				written := later(func() error { return write(t.Context(), tx, 34) })
				w.waitFor(t, "the writer stands at the gate", waitsForLock)
				w.end(t, g)
				open()
				if err := <-written; (err == nil) != c.passes {
					t.Errorf("the write: %v", err)
				} else if err != nil {
					wantCode(t, err, "ZF001")
				}
				w.acquire(t, orders, 35)
				if tx.Commit(t.Context()) == nil {
					t.Error("a stale write landed after arm had returned")
				}
			})
		}
	}
}

// Where a raise has the turn, ending waits for what becomes of it, and not for ever.
func TestEndingWaitsItsTurn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		finish string
		want   error
		token  fence.Token
		ended  bool
	}{
		"the raise is committed":   {"COMMIT", fence.ErrStale, 35, false},
		"the raise is rolled back": {"ROLLBACK", nil, 34, true},
		"it does not end":          {"", fence.ErrNotEnded, 34, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit := 20 * time.Second
			if c.finish == "" {
				limit = 50 * time.Millisecond
			}
			w := setup(t, pgfence.WithDrainLimit(limit))
			g := w.acquire(t, orders, 34)
			other := connect(t, w.pg.GatewayURL)
			if _, err := other.Exec(t.Context(), `BEGIN`); err != nil {
				t.Fatal(err)
			}
			if _, err := other.Exec(t.Context(), `SELECT fence.arm('orders/1001', 35, sha256('x'), 'h')`); err != nil {
				t.Fatal(err)
			}
			ended := later(func() error { return w.fence.End(t.Context(), ending(g)) })
			if c.finish != "" {
				w.waitFor(t, "it waits its turn", `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
					AND wait_event_type = 'Lock' AND query LIKE '%end_grants%')`)
				if _, err := other.Exec(t.Context(), c.finish); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-ended; !errors.Is(err, c.want) {
				t.Errorf("%v; want %v", err, c.want)
			}
			if _, err := other.Exec(t.Context(), `ROLLBACK`); err != nil {
				t.Fatal(err)
			}
			if record, err := w.fence.Inspect(t.Context(), orders); err != nil || record.Token != c.token || (record.EndedAt != nil) != c.ended {
				t.Errorf("%+v, %v", record, err)
			}
		})
	}
}

// The next holder arms while the end is not committed yet: it waits for its turn, and its grant is current.
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

// What comes while one group is on its way goes together.
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
	end(n, fence.Ending{Resource: grants[5].Resource, Token: 1}) // the same once more
	for deadline := time.Now().Add(20 * time.Second); pgfence.WaitingEnds(w.fence) < n && time.Now().Before(deadline); {
		w.waitFor(t, "time passes", `SELECT pg_sleep(0.002) IS NOT NULL`)
	}
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

// Ending keeps the row on its page and leaves nothing behind that sends the checks of the next holder down the slow path.
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

// Wherever the connection breaks, what End says is true, and whatever it was harms nobody: the next holder goes on.
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

// A caller that waits no more leaves: what it asked for may still happen, and holds nobody up.
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
	for range 3 { // the second and third never leave this process
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := w.fence.End(ctx, ending(g)); !errors.Is(err, fence.ErrUnknown) || !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancel()
	}
	if err := block.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.end(t, g)
}

// A pool without a connection to give is no reason to wait beyond the context.
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
