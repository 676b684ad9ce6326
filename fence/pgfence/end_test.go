package pgfence_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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

// checks are the ways in which a grant of [orders] is checked.
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

// cast writes under the given settings.
func cast(ctx context.Context, tx pgx.Tx, resource, token, sql string) error {
	if _, err := tx.Exec(ctx, `SELECT set_config('fence.resource', $1, true), set_config('fence.token', $2, true)`, resource, token); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, sql)
	return err
}

// more protects tables with the other kinds of guards.
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
	maps.Copy(all, checks)
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
		if pg.Message != `the lease of token 34 for "orders/1001" has ended` || pg.Message != stale.Error() || pg.Hint != code.Hint ||
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

// The fast check must refuse an ended grant itself, because no slower check follows it.
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

// An ended grant can't be armed again: that takes a higher token. A raise clears the end.
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
			for _, err := range []error{w.fence.Arm(t.Context(), arming(g)), w.fence.Arm(t.Context(), []fence.Arming{arming(g)}...)} {
				var low *fence.NotRaisedError
				if !errors.As(err, &low) || low.Recorded != 34 {
					t.Errorf("the same again: %v", err)
				}
			}
			raise(w, t)
			if record, err := w.fence.Inspect(t.Context(), orders); err != nil || record.Token <= 34 || (record.EndedAt != nil) != (name == "all") { // invalidating raises to an unknown seal
				t.Errorf("%+v, %v", record, err)
			}
		})
	}
}

func armAll(t testing.TB, w world, g fence.Grant) {
	t.Helper()
	if err := w.fence.Arm(t.Context(), []fence.Arming{arming(g)}...); err != nil {
		t.Error(err)
	}
}

// At each level, a transaction that began before the end is refused if it has not passed the check yet.
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
			if says := refusalOf(t, err).Message; !strings.Contains(says, "has ended") && !strings.Contains(says, "the lease released") {
				t.Error(says)
			}
		})
	}
}

// Ending does not wait: a writer that has passed the check commits, and its next statement is refused. The next
// holder drains it.
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

// The writer pauses at each point of the check. A write that lands after the end had passed the check before, and
// none lands once the next holder has armed.
func TestNoWriteLandsAfterTheEndAndTheNextArm(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		gate   string
		passes bool // the check had already read the fence
	}{
		"before the lock":       {beforeLock, false},
		"between lock and read": {beforeRead, false},
		"after the read":        {afterRead, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			pauseGuard(t, w, c.gate)
			for _, level := range levels {
				t.Run(string(level), func(t *testing.T) {
					g := w.renew(t)
					tx := begin(t, w.session(t), level, g)
					open := closeGate(t, w)
					written := later(func() error { return write(t.Context(), tx, g.Token) })
					w.waitFor(t, "the writer stands at the gate", waitsForLock)
					w.end(t, g)
					open()
					if err := <-written; (err == nil) != c.passes {
						t.Errorf("the write: %v", err)
					} else if err != nil {
						wantCode(t, err, "ZF001")
					}
					w.renew(t)
					if tx.Commit(t.Context()) == nil {
						t.Error("a stale write landed after arm had returned")
					}
				})
			}
		})
	}
}

// If a raise has the turn, ending waits for its outcome, but not forever.
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
