package pgfence_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestRightsAreAsNarrowAsTheRoles(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	gatewayOnly := []string{
		`SELECT fence.raise('x', 1, NULL, '')`, `SELECT fence.drain('x', 1, NULL)`, `SELECT fence.revoke('x')`,
		`SELECT fence.raise_epoch(1)`, `SELECT fence.check_issued('x', 1)`, `SELECT FROM fence.fences`,
	}
	nobody := []string{
		`SELECT FROM fence.resources`, `UPDATE fence.resources SET token = 1`, `DELETE FROM fence.resources`,
		`INSERT INTO fence.unsealed VALUES ('*')`, `UPDATE fence.epochs SET epoch = 1`, `TRUNCATE fence.resources`,
		`SELECT fence.verify('x', 1, NULL, 'issued')`, `SELECT fence.verify_settings(NULL)`, `SELECT fence.raise_unsealed('x', 1)`,
		`SELECT fence.end_holders(1)`, `CREATE TABLE fence.mine ()`, `ALTER FUNCTION fence.guard() RENAME TO x`,
	}
	denied := func(address string, statements ...string) {
		t.Helper()
		conn := connect(t, address)
		for _, sql := range statements {
			if _, err := conn.Exec(t.Context(), sql); err == nil {
				t.Errorf("allowed: %s", sql)
			} else if code := refusalOf(t, err).Code; code != "42501" {
				t.Errorf("%s: %v", sql, err)
			}
		}
	}
	denied(w.pg.WriterURL, append(gatewayOnly, nobody...)...)
	denied(w.pg.OtherURL, append(gatewayOnly, append(nobody, `SELECT fence.use('x', '1')`, `SELECT fence.check()`)...)...)
	denied(w.pg.GatewayURL, append(nobody, `SELECT fence.use('x', '1')`)...)

	// A guarded write needs the grant, and no right in the schema fence.
	conn := connect(t, w.pg.OtherURL)
	if err := attempt(t, conn, pgx.ReadCommitted, orders, g.Presented()); err != nil {
		t.Error(err)
	}
}

// A name of the session's own must not stand in for one that the guard uses.
func TestTheGuardIsDeafToTheSearchPath(t *testing.T) {
	t.Parallel()
	w := setup(t)
	g := w.acquire(t, orders, 34)
	w.exec(t, `GRANT CREATE ON SCHEMA public TO PUBLIC`)
	conn := w.session(t)
	for _, sql := range []string{
		`CREATE FUNCTION public.starts_with(text, text) RETURNS bool LANGUAGE sql AS 'SELECT true'`,
		`CREATE FUNCTION public.yes(text, text) RETURNS bool LANGUAGE sql AS 'SELECT true'`,
		`CREATE FUNCTION public.yes(bytea, bytea) RETURNS bool LANGUAGE sql AS 'SELECT true'`,
		`CREATE OPERATOR public.= (LEFTARG = text, RIGHTARG = text, FUNCTION = public.yes)`,
		`CREATE OPERATOR public.= (LEFTARG = bytea, RIGHTARG = bytea, FUNCTION = public.yes)`,
		`SET search_path = public, pg_catalog`,
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	wantCode(t, attempt(t, conn, pgx.ReadCommitted, orders, "34."+sealB), "ZF003")
	wantCode(t, attempt(t, conn, pgx.ReadCommitted, "other", g.Presented()), "ZF004")
	if err := attempt(t, conn, pgx.ReadCommitted, orders, g.Presented()); err != nil {
		t.Error(err)
	}
}
