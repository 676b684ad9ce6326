package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/sqlfence"
	"github.com/fencegate/fencegate/internal/testenv"
)

// Wherever the connection breaks, the reported outcome is true, and the database/sql pool gets its connection back.
func TestWhateverBreaksTheOutcomeIsTrue(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		whateverBreaks(t, w, drivers[driverOf(t)], "InTx", "Arm")
	})
}

// driverOf is the driver of the test that each runs. A test's name has no space.
func driverOf(t *testing.T) string {
	_, name, _ := strings.Cut(t.Name(), "/")
	return strings.ReplaceAll(name, "_", " ")
}

// The same holds for transactions and statements with a context's grant.
func TestWhateverBreaksTheOutcomeUnderAContextsGrantIsTrue(t *testing.T) {
	eachConnector(t, func(t *testing.T, w world) {
		whateverBreaks(t, w, connectors[driverOf(t)], "a statement", "a row", "a transaction")
	})
}

func whateverBreaks(t *testing.T, w world, openAs func(testing.TB, string) *sql.DB, names ...string) {
	g := w.acquire(t, orders, 1)
	calls := map[string]func(context.Context, *sql.DB) error{
		"InTx": func(ctx context.Context, db *sql.DB) error {
			return sqlfence.InTx(ctx, db, g, func(tx *sql.Tx) error { return write(t, tx, "work") })
		},
		"Arm": func(ctx context.Context, db *sql.DB) error {
			g = fence.Grant{Resource: orders, Token: g.Token + 1, Seal: fence.NewSeal()}
			return sqlfence.New(db).Arm(ctx, fence.Arming{Resource: g.Resource, Token: g.Token, SealHash: g.Seal.Hash()})
		},
	}
	for name, way := range ways {
		calls[name] = func(ctx context.Context, db *sql.DB) error { return way(sqlfence.WithGrant(ctx, g), db) }
	}
	for _, name := range names {
		b := breaking{world: w, name: name, openAs: openAs, call: calls[name], effects: `SELECT count(*) FROM work`, address: w.pg.WriterURL}
		if name == "Arm" {
			b.effects, b.address = `SELECT token FROM fence.resources`, w.pg.GatewayURL
		}
		seen := map[string]int{}
		missing := func() bool {
			transaction := name == "InTx" || name == "a transaction" // the pool does not retry these
			return seen["done"] == 0 || transaction && seen["not done"] == 0 || name != "Arm" && seen["unknown"] == 0
		}
		// On a busy machine a request may arrive in two pieces, so that no cut is at the COMMIT.
		for sweeps := 0; sweeps < 5 && (sweeps == 0 || missing()); sweeps++ {
			const requests = 14 // more than the calls take
			for request := int64(1); request <= requests; request++ {
				for _, arrives := range []bool{true, false} {
					seen[b.outcome(t, request, arrives)]++
				}
			}
		}
		t.Log(name, seen)
		if missing() {
			t.Errorf("%s: the requests end too early or too late: %v", name, seen)
		}
	}
}

// breaking is a call whose connection breaks.
type breaking struct {
	world
	name    string
	openAs  func(testing.TB, string) *sql.DB
	call    func(context.Context, *sql.DB) error
	effects string // counts what the call has done
	address string
}

func (b breaking) count(t *testing.T) (n int) {
	t.Helper()
	if err := b.admin.QueryRow(t.Context(), b.effects).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// outcome makes the call on a connection that breaks at a request, and compares what it says with what it did.
func (b breaking) outcome(t *testing.T, request int64, arrives bool) string {
	t.Helper()
	var p proxy
	db := b.openAs(t, through(t, &p, b.address)+"&application_name=breaks")
	db.SetMaxOpenConns(1)
	if err := db.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := b.count(t)
	p.arrives.Store(arrives)
	p.requests.Store(request)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	err := b.call(ctx, db)
	p.requests.Store(0)
	if conn, poolErr := db.Conn(ctx); poolErr != nil {
		t.Errorf("%s, request %d: the pool has lost its connection: %v", b.name, request, poolErr)
	} else {
		_ = conn.Close()
	}
	cancel()
	_ = db.Close()
	b.untilNobodyIs(t, "breaks")
	after := b.count(t)
	done := after > before
	switch {
	case err == nil && !done:
		t.Errorf("%s, request %d (arrives: %t): said done, and it is not", b.name, request, arrives)
	case after > before+1:
		t.Errorf("%s, request %d (arrives: %t): done twice: %v", b.name, request, arrives, err)
	case err != nil && !errors.Is(err, fence.ErrUnknown) && done:
		t.Errorf("%s, request %d (arrives: %t): said not done, and it is: %v", b.name, request, arrives, err)
	case err == nil:
		return "done"
	case errors.Is(err, fence.ErrUnknown):
		return "unknown"
	default:
		return "not done"
	}
	return "wrong"
}

// untilNobodyIs waits until the server has noticed that an application's connections are gone.
func (w world) untilNobodyIs(t *testing.T, application string) {
	t.Helper()
	testenv.Eventually(t, "the server has noticed", func() (gone bool) {
		err := w.admin.QueryRow(t.Context(), `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND datname = current_database())`, application).Scan(&gone)
		if err != nil {
			t.Fatal(err)
		}
		return gone
	})
}

// Neither a grant nor its lock outlives its transaction, however it ends, because the connection is reused.
func TestNothingOfAGrantStaysOnItsConnection(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		a, b := w.acquire(t, orders, 1), w.acquire(t, users, 1)
		w.db.SetMaxOpenConns(1)
		for name, fn := range map[string]func(*sql.Tx) error{
			"done":   func(tx *sql.Tx) error { return write(t, tx, "work") },
			"failed": func(*sql.Tx) error { return errors.New("boom") },
			"panics": func(*sql.Tx) error { panic("boom") },
		} {
			for _, grants := range [][]fence.Grant{{a}, {a, b}} {
				func() {
					defer func() { _ = recover() }()
					_ = sqlfence.InTxAll(t.Context(), w.db, sqlfence.TxOptions{}, grants, fn)
				}()
				var left string
				err := w.db.QueryRowContext(t.Context(), `SELECT concat(current_setting('fence.resource', true), current_setting('fence.token', true), current_setting('fence.grants', true),
					current_setting('fence.in_tx', true), (SELECT string_agg(mode, ' ') FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()))`).Scan(&left)
				if err != nil || left != "" {
					t.Errorf("%s with %d: %q stays; %v", name, len(grants), left, err)
				}
			}
		}
	})
}

// Missing arguments are reported before anything begins.
func TestMissingArgumentsAreInvalid(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		g := w.acquire(t, orders, 34)
		nothing := func(*sql.Tx) error { return nil }
		_, longHolder := w.fence.Revoke(t.Context(), orders, strings.Repeat("h", fence.MaxHolderBytes+1))
		for name, err := range map[string]error{
			"InTx without fn":    sqlfence.InTx(t.Context(), w.db, g, nil),
			"InTx nowhere":       sqlfence.InTx(t.Context(), nil, g, nothing),
			"Use of a nil tx":    sqlfence.Use(t.Context(), nil, g),
			"Check of a nil tx":  sqlfence.Check(t.Context(), nil),
			"an overlong holder": longHolder,
			"a short hash":       w.fence.Arm(t.Context(), fence.Arming{Resource: orders, Token: 35, SealHash: []byte("short")}),
		} {
			if !errors.Is(err, fence.ErrInvalid) || errors.Is(err, fence.ErrUnknown) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if r, err := w.fence.Inspect(t.Context(), orders); err != nil || r.Token != 34 {
			t.Errorf("%+v, %v", r, err)
		}
		gone := sqlfence.New(open(t, "postgres", "postgres://nobody@127.0.0.1:1/none?connect_timeout=2&sslmode=disable"))
		_, revoked := gone.Revoke(t.Context(), orders, "")
		for _, err := range []error{revoked, gone.Arm(t.Context(), fence.Arming{Resource: orders, Token: 1})} {
			if err == nil || errors.Is(err, fence.ErrUnknown) {
				t.Errorf("nothing was sent: %v", err)
			}
		}
	})
}
