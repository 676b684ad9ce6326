//go:build unix

package pgwire_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestIdleSessionsEndAndBusyOnesDoNot(t *testing.T) {
	t.Parallel()
	const limit = 4 * time.Second // each session reaches its state well within it, also on a busy machine
	w := setup(t, func(c *pgwire.Config) { c.IdleTimeout, c.IdleInTransactionTimeout = limit, limit })
	w.shop()
	idle, open := w.carrying(""), w.carrying("")
	if got := w.exec(open, "BEGIN; LOCK TABLE notes"); got != "" {
		t.Fatal(got)
	}
	failed := w.carrying("")
	if got := w.exec(failed, "BEGIN; SELECT 1/0"); got != "22012" {
		t.Fatal(got)
	}
	pipelined := w.carrying("")
	if got := w.exec(pipelined, "BEGIN"); got != "" {
		t.Fatal(got)
	}
	// A statement runs without a Sync after it: PostgreSQL is silent for longer than the limit.
	front := pipelined.PgConn().Frontend()
	front.SendParse(&pgproto3.Parse{Query: "SELECT pg_sleep(8)"})
	front.SendBind(&pgproto3.Bind{})
	front.SendExecute(&pgproto3.Execute{})
	front.Send(&pgproto3.Flush{})
	if err := front.Flush(); err != nil {
		t.Fatal(err)
	}
	busy := w.carrying("")
	if got := w.exec(busy, "SELECT pg_sleep(8)"); got != "" {
		t.Errorf("a session whose statement runs: %s", got)
	}
	for {
		m, err := front.Receive()
		if err != nil {
			t.Fatalf("a session whose statement runs without a Sync: %v", err)
		}
		if e, ok := m.(*pgproto3.ErrorResponse); ok {
			t.Fatalf("a session whose statement runs without a Sync: %s", e.Code)
		}
		if _, ok := m.(*pgproto3.CommandComplete); ok {
			break
		}
	}
	for _, c := range []struct {
		name, code string
		conn       *pgx.Conn
	}{{"idle", "57P05", idle}, {"idle in a transaction", "25P03", open}, {"idle in a failed transaction", "25P03", failed}} {
		_, err := c.conn.Exec(t.Context(), "SELECT 1")
		if ended, ok := errors.AsType[*pgconn.PgError](err); !ok || ended.Code != c.code || ended.Severity != "FATAL" || ended.Hint == "" {
			t.Errorf("%s: %v, want FATAL %s", c.name, err, c.code)
		}
	}
	if got := w.exec(w.carrying(""), "BEGIN; LOCK TABLE notes NOWAIT"); got != "" {
		t.Errorf("what an idle transaction had locked: %s", got)
	}
}

func TestOneUsersConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	w := setup(t, func(c *pgwire.Config) { c.MaxUserConnections = 2 })
	for range 5 { // clients without the password take no place
		cfg := w.config(w.pg.WriterURL)
		cfg.Password = "wrong"
		if _, err := pgx.ConnectConfig(t.Context(), cfg); sqlState(err) != "28P01" {
			t.Fatal(err)
		}
	}
	first, _ := w.carrying(""), w.carrying("")
	_, err := w.try("")
	if refused, ok := errors.AsType[*pgconn.PgError](err); !ok || refused.Code != "53300" || refused.Severity != "FATAL" || !strings.Contains(refused.Message, first.Config().User) {
		t.Errorf("the third: %v, want FATAL 53300 that names the role", err)
	}
	w.connect(w.config(w.pg.OtherURL))
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the place is free", func() bool { return w.srv.Taken() == 2 })
	w.carrying("")
}

func TestSessionsAreListedAndEnded(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.shop()
	g := w.arm("orders/1", 7)
	conn, other := w.carrying(presenting(g)), w.carrying("")
	if got := w.exec(conn, "BEGIN"); got != "" {
		t.Fatal(got)
	}
	find := func(c *pgx.Conn, state string) (found pgwire.Session) {
		// The relay notes an answer once its client has received it.
		testenv.Eventually(t, "both are listed, and one is "+state, func() bool {
			all := w.srv.Sessions()
			for _, s := range all {
				if s.Client == c.PgConn().Conn().LocalAddr().String() {
					found = s
				}
			}
			return len(all) == 2 && found.State == state
		})
		return found
	}
	s := find(conn, "idle in transaction")
	if s.User != conn.Config().User || s.Database != w.pg.Database || s.Resource != "orders/1" || s.Token != 7 ||
		s.FromClient == 0 || s.ToClient == 0 || time.Since(s.Since) > time.Minute || s.ID == "" {
		t.Errorf("%+v", s)
	}
	if text := fmt.Sprintf("%+v", s); strings.Contains(text, g.Seal.Reveal()) {
		t.Errorf("a seal is shown: %s", text)
	}
	if s := find(other, "idle"); s.Resource != "" || s.Token != 0 {
		t.Errorf("%+v", s)
	}
	if w.srv.End("no such") || w.srv.End("") {
		t.Error("a session was ended that there is not")
	}
	if !w.srv.End(s.ID) || w.srv.End(s.ID) {
		t.Error("a session is ended once")
	}
	_, err := conn.Exec(t.Context(), "COMMIT")
	if ended, ok := errors.AsType[*pgconn.PgError](err); !ok || ended.Code != "57P01" || ended.Severity != "FATAL" || !strings.Contains(ended.Message, "administrator") {
		t.Errorf("%v; want FATAL 57P01", err)
	}
	if got := w.exec(other, "SELECT 1"); got != "" {
		t.Errorf("the other session: %s", got)
	}
	testenv.Eventually(t, "one is left", func() bool { return len(w.srv.Sessions()) == 1 })
}

// heard collects what a server reports to its metrics.
type heard struct {
	mu             sync.Mutex
	logins, firsts []time.Duration
	refused, ended []string
}

func (h *heard) do(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

func (h *heard) LoggedIn(took time.Duration) { h.do(func() { h.logins = append(h.logins, took) }) }

func (h *heard) Answered(took time.Duration) { h.do(func() { h.firsts = append(h.firsts, took) }) }

func (h *heard) Refused(code string) { h.do(func() { h.refused = append(h.refused, code) }) }

func (h *heard) Ended(code string) { h.do(func() { h.ended = append(h.ended, code) }) }

func TestMetricsHearOfLoginsAnswersAndRefusals(t *testing.T) {
	t.Parallel()
	var h heard
	w := setup(t, rules(t, "*@*=grant-required"), func(c *pgwire.Config) { c.Metrics = &h })
	g := w.arm("orders/1", 7)
	conn := w.carrying(presenting(g))
	for range 3 {
		if got := w.exec(conn, "SELECT pg_sleep(0.2)"); got != "" {
			t.Fatal(got)
		}
	}
	if _, err := w.try(""); sqlState(err) != "ZF002" {
		t.Fatal(err)
	}
	for _, s := range w.srv.Sessions() {
		w.srv.End(s.ID)
	}
	testenv.Eventually(t, "it is ended", func() bool { return w.srv.Stats().Active == 0 })
	h.do(func() {
		if len(h.logins) != 1 || h.logins[0] <= 0 || h.logins[0] > 20*time.Second {
			t.Errorf("logins: %v", h.logins)
		}
		if len(h.firsts) != 1 || h.firsts[0] > 20*time.Second { // the first statement prepares the next
			t.Errorf("first bytes: %v", h.firsts)
		}
		if fmt.Sprint(h.refused, h.ended) != "[ZF002] [57P01]" {
			t.Errorf("refused %v, ended %v", h.refused, h.ended)
		}
	})
}

func TestTrafficIsToldOfAllSessionsTogether(t *testing.T) {
	t.Parallel()
	w := setup(t)
	conn := w.carrying("-c fence.resource=r -c fence.token=1." + someSeal)
	other := w.carrying("")
	if got := w.exec(conn, "SELECT repeat('x', 100000)"); got != "" {
		t.Fatal(got)
	}
	// The relay notes an answer once its client has received it.
	testenv.Eventually(t, "the answer is counted to its end", func() bool {
		all := w.srv.Sessions()
		return len(all) == 2 && all[0].State == "idle" && all[1].State == "idle" && w.srv.Traffic().ToClient > 100000
	})
	before := w.srv.Traffic()
	if before.Granted != 1 || before.Others != 1 || before.FromClient == 0 || before.FromClient > 10000 {
		t.Errorf("%+v", before)
	}
	if again := w.srv.Traffic(); again != before {
		t.Errorf("nothing passed, and %+v became %+v", before, again)
	}
	for _, one := range []*pgx.Conn{conn, other} {
		if err := one.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Eventually(t, "both are over", func() bool { now := w.srv.Traffic(); return now.Granted+now.Others == 0 })
	if after := w.srv.Traffic(); after.ToClient < before.ToClient || after.FromClient < before.FromClient {
		t.Errorf("counters fell from %+v to %+v", before, after)
	}
}
