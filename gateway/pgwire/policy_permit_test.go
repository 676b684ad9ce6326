//go:build unix

package pgwire_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

func parsed(t *testing.T, texts ...string) []pgwire.Rule {
	t.Helper()
	rules, err := pgwire.ParseRules(texts)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func (w *world) permit(rules []pgwire.Rule) {
	w.t.Helper()
	if err := w.srv.Permit(rules); err != nil {
		w.t.Fatal(err)
	}
}

// endedAs returns the SQLSTATE with which an idle session is ended.
func (w *world) endedAs(conn *pgx.Conn) string {
	w.t.Helper()
	return sqlState(conn.PgConn().WaitForNotification(w.t.Context()))
}

func TestStricterPoliciesEndOpenSessionsBetweenTransactions(t *testing.T) {
	t.Parallel()
	w := setup(t, rules(t, "*=open"))
	w.shop()
	idle, busy := w.carrying(""), w.carrying("")
	if got := w.exec(busy, "BEGIN; INSERT INTO notes VALUES (1)"); got != "" {
		t.Fatal(got)
	}
	w.permit(parsed(t, "*=grant-required"))
	if got := w.endedAs(idle); got != "57P01" {
		t.Errorf("the idle session: %s; want 57P01", got)
	}
	if got := w.exec(busy, "INSERT INTO notes VALUES (2)"); got != "" {
		t.Errorf("inside of its transaction: %s", got)
	}
	if got := w.exec(busy, "COMMIT"); got != "" {
		t.Errorf("its COMMIT: %s", got)
	}
	if got := w.endedAs(busy); got != "57P01" {
		t.Errorf("behind its transaction: %s; want 57P01", got)
	}
	if _, err := w.try(""); sqlState(err) != "ZF002" {
		t.Errorf("a new session: %v; want ZF002", err)
	}
	var rows int
	if err := w.pg.Pool(t).QueryRow(t.Context(), "SELECT count(*) FROM notes").Scan(&rows); err != nil || rows != 2 {
		t.Errorf("%d rows, %v; want 2", rows, err)
	}
}

func TestSessionsThatTheNewPoliciesWouldLetInGoOn(t *testing.T) {
	t.Parallel()
	w := setup(t, rules(t, "*=grant-required"))
	w.shop()
	conn := w.carrying(presenting(w.arm("orders/1", 3)))
	for _, policy := range []string{"*=open", "*=read-only", "*=grant-required", "nobody=open,*=grant-required"} {
		w.permit(parsed(t, strings.Split(policy, ",")...))
		if got := w.exec(conn, "INSERT INTO orders VALUES (1)"); got != "" {
			t.Errorf("%s: %s", policy, got)
		}
	}
}

func TestRulesThatAreRefusedChangeNothing(t *testing.T) {
	t.Parallel()
	w := setup(t, rules(t, "*=open"))
	conn := w.carrying("")
	for name, rules := range map[string][]pgwire.Rule{
		"never applies":    parsed(t, "*=grant-required", "app=open"),
		"another database": parsed(t, "*=grant-required", "app@elsewhere=open"),
	} {
		if _, ok := errors.AsType[*fence.InvalidError](w.srv.Permit(rules)); !ok {
			t.Errorf("%s: %v; want a *fence.InvalidError", name, w.srv.Permit(rules))
		}
		if got := w.exec(conn, "SELECT 1"); got != "" {
			t.Errorf("%s: the open session: %s", name, got)
		}
		if _, err := w.try(""); err != nil {
			t.Errorf("%s: a new session: %v", name, err)
		}
	}
}

func TestRulesMayChangeWhileManyLogIn(t *testing.T) {
	t.Parallel()
	w := setup(t, rules(t, "*=open"))
	stop, enough := context.WithCancel(t.Context())
	defer enough()
	changed := make(chan struct{})
	go func() {
		defer close(changed)
		for stop.Err() == nil {
			_ = w.srv.Permit([]pgwire.Rule{{User: "*", Database: "*", Policy: pgwire.PolicyGrantRequired}})
			_ = w.srv.Permit(nil)
		}
	}()
	for range 20 {
		conn, err := pgx.ConnectConfig(t.Context(), w.config(w.pg.WriterURL))
		if err == nil {
			_ = conn.Close(t.Context())
		}
	}
	enough()
	<-changed
	w.permit(parsed(t, "*=grant-required"))
	testenv.Eventually(t, "no session without a grant is left", func() bool { return w.srv.Stats().Active == 0 })
}
