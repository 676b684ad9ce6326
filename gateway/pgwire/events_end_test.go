//go:build unix

package pgwire_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/wire"
)

// The end of an idle session is reported as an end. If it cuts off a statement because of the grant, it is reported as
// a refusal.
func TestTheEndOfASessionIsTold(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state      string
		superseded bool
		kind, code string
	}{
		{"idle", false, wire.EventEnded, "57P01"},
		{"active", false, wire.EventEnded, "57P01"},
		{"idle in transaction", false, wire.EventEnded, "57P01"},
		{"idle", true, wire.EventEnded, "ZF001"},
		{"active", true, wire.EventRefused, "ZF001"},
		{"idle in transaction", true, wire.EventRefused, "ZF001"},
	} {
		events := make(chan activity.Event, 10)
		f := &fences{tokens: map[string]fence.Token{"a b": 34}}
		r := setup(t, reports(events), func(c *pgwire.Config) { c.Fences, c.FencesEvery = f.read, 5*time.Millisecond })
		conn := r.carrying("-c fence.resource=a%20b -c fence.token=34." + someSeal)
		if sql := map[string]string{"active": "SELECT pg_sleep(600)", "idle in transaction": "BEGIN"}[c.state]; sql != "" {
			conn.PgConn().Frontend().Send(&pgproto3.Query{String: sql})
			if err := conn.PgConn().Frontend().Flush(); err != nil {
				t.Fatal(err)
			}
		}
		var id string
		testenv.Eventually(t, "it is listed", func() bool {
			for _, s := range r.srv.Sessions() {
				if s.State == c.state {
					id = s.ID
				}
			}
			return id != ""
		})
		if c.superseded {
			f.set("a b", 35, nil)
		} else {
			r.srv.End(id)
		}
		e := <-events
		if e.Kind != c.kind || e.Code != c.code || e.Login == "" || e.Client == "" || c.superseded && (e.Resource != "a b" || e.Presented != 34 || e.Recorded != 35) {
			t.Errorf("%+v: %+v", c, e)
		}
	}
}

// Arming ends the backends with older grants itself, before any gateway is notified.
func TestAClientIsToldOfTheNewerGrantForWhichPostgreSQLEndsIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		inside, newer bool
		code          string
	}{{false, true, "ZF001"}, {true, true, "ZF001"}, {true, false, "57P01"}} {
		f := &fences{tokens: map[string]fence.Token{"a b": 34}}
		w := setup(t, func(c *pgwire.Config) { c.Fences, c.FencesEvery = f.read, time.Hour })
		conn := w.carrying("-c fence.resource=a%20b -c fence.token=34." + someSeal)
		if c.inside {
			if _, err := conn.Exec(t.Context(), "BEGIN"); err != nil {
				t.Fatal(err)
			}
		}
		if c.newer {
			f.set("a b", 35, nil)
		}
		if _, err := w.pg.Pool(t).Exec(t.Context(), "SELECT pg_terminate_backend($1)", conn.PgConn().PID()); err != nil {
			t.Fatal(err)
		}
		if code, text := finalError(t, conn.PgConn().Conn()); code != c.code {
			t.Errorf("%+v: %s %s", c, code, text)
		}
	}
}
