//go:build unix

package pgwire_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

// A session that is ended at rest is told as such; one whose statement that cuts off is told as
// refused, where its grant is why.
func TestTheEndOfASessionIsTold(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		busy, superseded bool
		kind, code       string
	}{
		{false, false, wire.EventEnded, "57P01"},
		{true, false, wire.EventEnded, "57P01"},
		{false, true, wire.EventEnded, "ZF001"},
		{true, true, wire.EventRefused, "ZF001"},
	} {
		events := make(chan activity.Event, 10)
		f := &fences{tokens: map[string]fence.Token{"a b": 34}}
		r := setup(t, told(events), func(c *pgwire.Config) { c.Fences, c.FencesEvery = f.read, 5*time.Millisecond })
		conn := r.carrying("-c fence.resource=a%20b -c fence.token=34." + someSeal)
		if c.busy {
			conn.PgConn().Frontend().Send(&pgproto3.Query{String: "SELECT pg_sleep(600)"})
			if err := conn.PgConn().Frontend().Flush(); err != nil {
				t.Fatal(err)
			}
		}
		var id string
		testenv.Eventually(t, "it is listed", func() bool {
			for _, s := range r.srv.Sessions() {
				if s.State == map[bool]string{true: "active", false: "idle"}[c.busy] {
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
