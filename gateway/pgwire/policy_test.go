//go:build unix

package pgwire_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

func rules(t *testing.T, texts ...string) option {
	t.Helper()
	return func(c *pgwire.Config) {
		for _, text := range texts {
			r, err := pgwire.ParseRule(text)
			if err != nil {
				t.Fatal(err)
			}
			c.Rules = append(c.Rules, r)
		}
	}
}

// shop creates a guarded table, whose writes need the resource orders/1, and an unguarded one.
func (w *world) shop() {
	w.t.Helper()
	for _, sql := range []string{
		"CREATE TABLE orders (n int)", "GRANT ALL ON orders TO fence_writer", "SELECT fence.protect('orders', resource => 'orders/1')",
		"CREATE TABLE notes (n int)", "GRANT ALL ON notes TO fence_writer",
	} {
		if _, err := w.pg.Pool(w.t).Exec(w.t.Context(), sql); err != nil {
			w.t.Fatalf("%s: %v", sql, err)
		}
	}
}

// arm raises the resource's fence to token and returns the grant.
func (w *world) arm(resource string, token fence.Token) fence.Grant {
	w.t.Helper()
	g := fence.Grant{Resource: resource, Token: token, Seal: fence.NewSeal()}
	f := pgfence.New(testenv.PoolOf(w.t, w.pg.GatewayURL))
	if err := f.Arm(w.t.Context(), fence.Arming{Resource: resource, Token: token, SealHash: g.Seal.Hash(), Holder: "test"}); err != nil {
		w.t.Fatal(err)
	}
	return g
}

func presenting(g fence.Grant) string {
	return fmt.Sprintf("-c fence.resource=%s -c fence.token=%s", fence.EscapeResource(g.Resource), g.Presented())
}

// try connects as the writer, with these startup options.
func (w *world) try(options string) (*pgx.Conn, error) {
	w.t.Helper()
	cfg := w.config(w.pg.WriterURL)
	cfg.RuntimeParams["options"] = options
	conn, err := pgx.ConnectConfig(w.t.Context(), cfg)
	if err == nil {
		w.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(w.t.Context())) })
	}
	return conn, err
}

func (w *world) exec(conn *pgx.Conn, sql string) string {
	w.t.Helper()
	_, err := conn.Exec(w.t.Context(), sql)
	if err == nil {
		return ""
	}
	return sqlState(err)
}

func TestGrantRequiredLetsNobodyInWithoutACurrentGrant(t *testing.T) {
	t.Parallel()
	w := setup(t, rules(t, "*=grant-required"))
	w.shop()
	old := w.arm("orders/1", 3)
	current := w.arm("orders/1", 4)
	forged := current
	forged.Seal = fence.NewSeal()
	bySeal := current
	bySeal.Token = 0
	ahead := forged
	ahead.Token = 9
	for name, c := range map[string]struct{ options, code, detail string }{
		"no grant":            {"", "ZF002", `"user":`},
		"half a grant":        {"-c fence.resource=orders/1", "ZF002", `"database":`},
		"stale":               {presenting(old), "ZF001", `"recorded":"4"`},
		"forged":              {presenting(forged), "ZF003", ""},
		"invented":            {presenting(ahead), "ZF003", ""},
		"malformed":           {"-c fence.resource=orders/1 -c fence.token=x", "ZF003", ""},
		"another's":           {"-c fence.resource=orders/2 -c fence.token=1." + someSeal, "ZF003", ""},
		"a list, one stale":   {"-c fence.grants=orders/1=" + old.Presented(), "ZF001", ""},
		"current":             {presenting(current), "", ""},
		"by its seal":         {presenting(bySeal), "", ""},
		"a list":              {"-c fence.grants=orders/1=" + current.Presented(), "", ""},
		"in spite of options": {presenting(current) + " -c default_transaction_isolation=serializable", "", ""},
	} {
		conn, err := w.try(c.options)
		if c.code == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else if got := w.exec(conn, "INSERT INTO orders VALUES (1)"); got != "" {
				t.Errorf("%s: the write: %s", name, got)
			}
			continue
		}
		refused, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || refused.Severity != "FATAL" || refused.Code != c.code || refused.Hint == "" || !strings.Contains(refused.Detail, c.detail) {
			t.Errorf("%s: %v %+v; want FATAL %s", name, err, refused, c.code)
			continue
		}
		for _, secret := range []string{old.Seal.Reveal(), current.Seal.Reveal(), forged.Seal.Reveal()} {
			if strings.Contains(fmt.Sprintf("%+v", *refused), secret) {
				t.Errorf("%s: a seal is shown: %+v", name, refused)
			}
		}
	}
	testenv.Eventually(t, "the refused are gone", func() bool { return w.srv.Stats().Active == 4 })
	if got := w.srv.Stats(); got.Refused != 8 || got.Sessions != 4 {
		t.Errorf("%+v; want 8 refused and 4 sessions", got)
	}
}

func TestWhoHasNotLoggedInLearnsNothingOfFences(t *testing.T) {
	t.Parallel()
	w := setup(t, rules(t, "*=grant-required"))
	stale, _ := w.arm("orders/1", 3), w.arm("orders/1", 4)
	for _, options := range []string{"", presenting(stale)} {
		cfg := w.config(w.pg.WriterURL)
		cfg.Password = "wrong"
		cfg.RuntimeParams["options"] = options
		if _, err := pgx.ConnectConfig(t.Context(), cfg); sqlState(err) != "28P01" {
			t.Errorf("%q with a wrong password: %v; want 28P01", options, err)
		}
	}
}

func TestRefusedSessionsStatementsReachNobody(t *testing.T) {
	t.Parallel()
	password := &pgproto3.PasswordMessage{Password: "p"}
	got := make(chan []byte, 1)
	addr := upstream(t, func(conn net.Conn) {
		readStartup(conn)
		_, _ = conn.Write(encode(&pgproto3.AuthenticationCleartextPassword{}))
		b, _ := io.ReadAll(io.LimitReader(conn, int64(size(password))))
		_, _ = conn.Write(encode(authOK, ready))
		rest, _ := io.ReadAll(conn)
		got <- append(b, rest...)
	})
	r := start(t, "tcp", addr, "shop", rules(t, "*=grant-required"))
	conn := r.dial()
	// A client that does not wait for its login; PostgreSQL would run this.
	send(t, conn, startup, password, &pgproto3.Query{String: "DROP TABLE orders"})
	if code, message := finalError(t, conn); code != "ZF002" {
		t.Errorf("%s %s; want ZF002", code, message)
	}
	want, _ := password.Encode(nil)
	if b := <-got; string(b) != string(want) {
		t.Errorf("PostgreSQL got %q behind the startup packet; want the password only", b)
	}
}

func TestStatementsSentAheadRunOnceTheSessionIsOpen(t *testing.T) {
	t.Parallel()
	query, _ := (&pgproto3.Query{String: "SELECT 1"}).Encode(nil)
	got := make(chan []byte, 1)
	addr := upstream(t, func(conn net.Conn) {
		readStartup(conn)
		_, _ = conn.Write(encode(authOK, ready))
		b := make([]byte, len(query))
		_, _ = io.ReadFull(conn, b)
		got <- b
	})
	r := start(t, "tcp", addr, "shop")
	conn := r.dial()
	send(t, conn, startup)
	for i := range query { // one byte at a time
		if _, err := conn.Write(query[i : i+1]); err != nil {
			t.Fatal(err)
		}
	}
	if b := <-got; string(b) != string(query) {
		t.Errorf("PostgreSQL got %q, want %q", b, query)
	}
}

func TestReadOnlyWithoutAGrant(t *testing.T) {
	t.Parallel()
	w := setup(t, rules(t, "*=read-only"))
	w.shop()
	stale, current := w.arm("orders/1", 3), w.arm("orders/1", 4)
	for _, options := range []string{"", "-c default_transaction_read_only=off"} {
		conn, err := w.try(options)
		if err != nil {
			t.Fatal(err)
		}
		for sql, want := range map[string]string{
			"SELECT * FROM notes": "", "INSERT INTO notes VALUES (1)": "25006", "INSERT INTO orders VALUES (1)": "25006",
		} {
			if got := w.exec(conn, sql); got != want {
				t.Errorf("%q, %s: %q, want %q", options, sql, got, want)
			}
		}
		// The policy does not prevent this; the guard does.
		if got := w.exec(conn, "BEGIN READ WRITE; INSERT INTO notes VALUES (1); COMMIT"); got != "" {
			t.Errorf("documented as possible: %s", got)
		}
		if got := w.exec(conn, "BEGIN READ WRITE; INSERT INTO orders VALUES (1); COMMIT"); got != "ZF002" {
			t.Errorf("the guarded table: %q, want ZF002", got)
		}
		_ = w.exec(conn, "ROLLBACK")
		if got := w.exec(conn, "DISCARD ALL; INSERT INTO notes VALUES (1)"); got == "" {
			t.Error("DISCARD ALL made the session writable")
		}
	}
	conn, err := w.try(presenting(current))
	if err != nil {
		t.Fatal(err)
	}
	if got := w.exec(conn, "INSERT INTO orders VALUES (1)"); got != "" {
		t.Errorf("under the current grant: %s", got)
	}
	if _, err := w.try(presenting(stale)); sqlState(err) != "ZF001" {
		t.Errorf("under a stale grant: %v; want ZF001", err)
	}
}

func TestTheFirstRuleThatFitsCounts(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	writer, err := pgx.ParseConfig(pg.WriterURL)
	if err != nil {
		t.Fatal(err)
	}
	w := setup(t, rules(t, writer.User+"=open", "*=grant-required"))
	if _, err := w.try(""); err != nil {
		t.Errorf("the writer: %v", err)
	}
	if _, err := pgx.ConnectConfig(t.Context(), w.config(w.pg.OtherURL)); sqlState(err) != "ZF002" {
		t.Errorf("another: %v; want ZF002", err)
	}
	w = setup(t, rules(t, "*=grant-required"))
	g := w.arm("orders/1", 1)
	cfg := w.config(w.pg.OtherURL) // not in fence_writer
	cfg.RuntimeParams["options"] = presenting(g)
	_, err = pgx.ConnectConfig(t.Context(), cfg)
	if refused, ok := errors.AsType[*pgconn.PgError](err); !ok || refused.Code != "42501" || !strings.Contains(refused.Hint, "GRANT fence_writer") {
		t.Errorf("a role that may not present grants: %v", err)
	}
}

func TestADatabaseWithoutAFenceIsNamed(t *testing.T) {
	t.Parallel()
	pg := testenv.PostgresEmpty(t)
	cfg, err := pgx.ParseConfig(pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	network, addr := pgnetwork(cfg)
	r := start(t, network, addr, pg.Database, rules(t, "*=grant-required"))
	client := r.config(pg.URL)
	client.RuntimeParams["options"] = "-c fence.resource=a -c fence.token=1." + someSeal
	_, err = pgx.ConnectConfig(t.Context(), client)
	if refused, ok := errors.AsType[*pgconn.PgError](err); !ok || refused.Code != "3F000" || !strings.Contains(refused.Hint, "migrate") {
		t.Errorf("%v; want 3F000 that says migrate", err)
	}
}

func TestRulesAreReadStrictly(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]pgwire.Rule{
		"app=open":             {User: "app", Database: "*", Policy: pgwire.PolicyOpen},
		"*@shop=read-only":     {User: "*", Database: "shop", Policy: pgwire.PolicyReadOnly},
		"a@b@c=grant-required": {User: "a@b", Database: "c", Policy: pgwire.PolicyGrantRequired},
		"a=b=open":             {User: "a=b", Database: "*", Policy: pgwire.PolicyOpen},
	} {
		if got, err := pgwire.ParseRule(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "app", "=open", "app=", "app=closed", "app=Open", "@shop=open", "app@=open", "app=open "} {
		if got, err := pgwire.ParseRule(text); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%q: %+v, %v; want it refused", text, got, err)
		}
	}
	for _, texts := range [][]string{
		{"*=open", "app=grant-required"}, {"app@shop=open", "app@shop=open"}, {"*@shop=open", "app@shop=read-only"}, {"app@another=open"},
	} {
		cfg := pgwire.Config{Addr: "127.0.0.1:1", Database: "shop"}
		rules(t, texts...)(&cfg)
		if _, err := pgwire.New(cfg); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%q: %v; want it refused", texts, err)
		}
	}
	cfg := pgwire.Config{Addr: "127.0.0.1:1", Database: "shop"}
	rules(t, "app@shop=open", "*@replication=open", "*@shop=grant-required", "*=open")(&cfg)
	if _, err := pgwire.New(cfg); err != nil {
		t.Errorf("rules from narrow to wide: %v", err)
	}
}
