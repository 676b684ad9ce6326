//go:build unix

package pgwire_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

func permits(t *testing.T, texts ...string) pgwire.Permits {
	t.Helper()
	rules, err := pgwire.ParseRules(texts)
	if err != nil {
		t.Fatal(err)
	}
	return pgwire.Permits{Rules: rules}
}

func (w *world) permit(p pgwire.Permits) {
	w.t.Helper()
	if err := w.srv.Permit(p); err != nil {
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
	w.permit(permits(t, "*=grant-required"))
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
		w.permit(permits(t, strings.Split(policy, ",")...))
		if got := w.exec(conn, "INSERT INTO orders VALUES (1)"); got != "" {
			t.Errorf("%s: %s", policy, got)
		}
	}
}

func TestRulesThatAreRefusedChangeNothing(t *testing.T) {
	t.Parallel()
	w := setup(t, rules(t, "*=open"))
	conn := w.carrying("")
	for name, p := range map[string]pgwire.Permits{
		"never applies":    permits(t, "*=grant-required", "app=open"),
		"another database": permits(t, "*=grant-required", "app@elsewhere=open"),
		"without leases":   {Rules: permits(t, "*=grant-required").Rules, LeaseRules: []pgwire.LeaseRule{{User: "*", Resource: "*"}}},
	} {
		if _, ok := errors.AsType[*fence.InvalidError](w.srv.Permit(p)); !ok {
			t.Errorf("%s: %v; want a *fence.InvalidError", name, w.srv.Permit(p))
		}
		if got := w.exec(conn, "SELECT 1"); got != "" {
			t.Errorf("%s: the open session: %s", name, got)
		}
		if _, err := w.try(""); err != nil {
			t.Errorf("%s: a new session: %v", name, err)
		}
	}
}

func TestWhoWaitsForALeaseThatItMayNotHaveAnyMoreIsTold(t *testing.T) {
	t.Parallel()
	leases := newCounter()
	r := start(t, "tcp", upstream(t, func(conn net.Conn) {
		readStartup(conn)
		_, _ = conn.Write(encode(authOK, ready))
		_, _ = io.Copy(io.Discard, conn)
	}), "shop", func(c *pgwire.Config) {
		c.Leases, c.LeaseRules = leases, []pgwire.LeaseRule{{User: "ada", Resource: "orders/*"}}
	})
	conn := r.dial()
	send(t, conn, &pgproto3.StartupMessage{
		ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "ada", "database": "shop", "fence.lease": "orders/1;fresh"},
	})
	<-leases.asked
	if err := r.srv.Permit(pgwire.Permits{LeaseRules: []pgwire.LeaseRule{{User: "ada", Resource: "orders/2"}}}); err != nil {
		t.Fatal(err)
	}
	close(leases.give) // the answer was in transit
	if code, message := farewell(t, conn); code != "57P01" {
		t.Errorf("%s %s; want 57P01", code, message)
	}
	if first, then := <-leases.out, <-leases.out; first != 1 || then != 0 {
		t.Errorf("%d and then %d leases are out; want 1 and 0", first, then)
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
			_ = w.srv.Permit(pgwire.Permits{Rules: []pgwire.Rule{{User: "*", Database: "*", Policy: pgwire.PolicyGrantRequired}}})
			_ = w.srv.Permit(pgwire.Permits{})
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
	w.permit(permits(t, "*=grant-required"))
	testenv.Eventually(t, "no session without a grant is left", func() bool { return w.srv.Stats().Active == 0 })
}
