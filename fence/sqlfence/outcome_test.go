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
)

// The context of a lost COMMIT still carries its grant, which the next holder may have superseded. Outcome asks
// without it.
func TestTheOutcomeIsFoundUnderAContextWhoseGrantIsStale(t *testing.T) {
	t.Parallel()
	for name, open := range connectors {
		for _, arrives := range []bool{true, false} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				var p proxy
				w := newWorld(t, func(t testing.TB, address string) *sql.DB { return open(t, through(t, &p, address)) })
				ctx, cancel := context.WithTimeout(sqlfence.WithGrant(t.Context(), w.acquire(t, orders, 1)), 2*time.Minute)
				defer cancel()
				p.atCommit(arrives)
				lost := ways["a statement"](ctx, w.db)
				if !errors.Is(lost, fence.ErrUnknown) {
					t.Fatalf("got %v", lost)
				}
				w.acquire(t, orders, 2)
				err := sqlfence.Outcome(ctx, w.db, lost)
				if (err == nil) != arrives || !arrives && !errors.Is(err, fence.ErrNotCommitted) || errors.Is(err, fence.ErrStale) {
					t.Errorf("arrives %t: %v", arrives, err)
				}
			})
		}
	}
}

// What concerns the fence itself presents no grant, whatever its context carries.
func TestTheFenceIsAskedWithoutTheContextsGrant(t *testing.T) {
	eachConnector(t, func(t *testing.T, w world) {
		ctx := sqlfence.WithGrant(t.Context(), w.acquire(t, orders, 1))
		w.acquire(t, orders, 2)
		db := connectors[driverOf(t)](t, w.pg.GatewayURL)
		f, g := sqlfence.New(db), fence.Grant{Resource: orders, Token: 3, Seal: fence.NewSeal()}
		if err := f.Arm(ctx, fence.Arming{Resource: orders, Token: 3, SealHash: g.Seal.Hash()}); err != nil {
			t.Errorf("Arm: %v", err)
		}
		if err := f.End(ctx, fence.Ending{Resource: orders, Token: 3, SealHash: g.Seal.Hash()}); err != nil {
			t.Errorf("End: %v", err)
		}
		if token, err := f.Revoke(ctx, orders, "operator"); err != nil || token != 4 {
			t.Errorf("Revoke: %d, %v", token, err)
		}
		if r, err := f.Inspect(ctx, orders); err != nil || r.Token != 4 {
			t.Errorf("Inspect: %+v, %v", r, err)
		}
		if _, err := sqlfence.KeyPrefix(db)(ctx); err != nil {
			t.Errorf("KeyPrefix: %v", err)
		}
	})
}

// A closed connection or pool never answers again, so the outcome is not asked there until the context ends.
func TestTheOutcomeIsNotAskedForEverOnWhatIsClosed(t *testing.T) {
	each(t, func(t *testing.T, w world) {
		closed := drivers[driverOf(t)](t, w.pg.WriterURL)
		conn, err := w.db.Conn(t.Context())
		if err := errors.Join(err, closed.Close()); err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		var pid int
		if err := conn.QueryRowContext(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			t.Fatal(err)
		}
		if _, err := w.admin.Exec(t.Context(), `SELECT pg_terminate_backend($1, 60000)`, pid); err != nil {
			t.Fatal(err)
		}
		lost := &fence.UnknownError{XID: "1", Run: "run", Err: errors.New("lost")}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for name, db := range map[string]sqlfence.Beginner{"connection": conn, "pool": closed} {
			err := sqlfence.Outcome(ctx, db, lost)
			if !errors.Is(err, fence.ErrUnknown) || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "open pool") {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}
