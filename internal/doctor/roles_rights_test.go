//go:build unix

package doctor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/testenv"
)

// routine is a function as the database has it.
type routine struct {
	Name    string
	Callers []string // beside the owner
}

const sqlRoutines = `SELECT p.oid::regprocedure::text,
       ARRAY(SELECT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
               FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a WHERE a.grantee <> p.proowner)
  FROM pg_proc p WHERE p.pronamespace IN ('fence'::regnamespace, 'objects'::regnamespace) ORDER BY 1`

// A restore without privileges gives PUBLIC each function, and takes each from the roles. What writers may call does no
// harm to anybody else's.
func TestEachRightOnAFunctionIsLookedAt(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	conn, err := pgx.Connect(t.Context(), pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	want(t, checkPrivileges(t.Context(), conn), "postgresql.privileges", OK)
	routines, err := collect[routine](t.Context(), conn, sqlRoutines)
	if err != nil || len(routines) < 100 {
		t.Fatalf("%d functions, %v", len(routines), err)
	}
	granted, revoked := map[string]string{}, map[string]string{} // what is found after each statement
	for _, r := range routines {
		if !slices.Contains(r.Callers, "PUBLIC") && !slices.Contains(r.Callers, "fence_writer") {
			granted["GRANT EXECUTE ON ROUTINE "+r.Name+" TO fencegate_test_other"] = "fencegate_test_other may call " + r.Name
		}
		for _, role := range append(r.Callers, "fence_owner") {
			sql := fmt.Sprintf("REVOKE EXECUTE ON ROUTINE %s FROM %s", r.Name, role)
			switch {
			case role == "PUBLIC":
				revoked[sql] = "not every role may call " + r.Name
			case role != "fence_owner" || !slices.Contains(r.Callers, "PUBLIC"): // the owner may as everybody
				revoked[sql] = role + " may not call " + r.Name
			}
		}
	}
	wantFaults(t, conn, granted)
	wantFaults(t, conn, revoked)

	exec(t, pg.URL, `DROP FUNCTION fence.arm_group`)
	want(t, examine(t, pg.GatewayURL), "postgresql.schema", Fail, "arm_group", "migrate up")
}

// wantFaults wants each statement to be found, and the remedies to be complete. It leaves nothing.
func wantFaults(t *testing.T, conn *pgx.Conn, faults map[string]string) {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	run := func(statements ...string) {
		t.Helper()
		if _, err := tx.Exec(t.Context(), strings.Join(statements, ";\n"), pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	run(slices.Sorted(maps.Keys(faults))...)
	findings := checkPrivileges(t.Context(), conn)
	said := map[string]bool{}
	for _, f := range findings {
		said[f.Found] = f.Status == Fail
		run(f.Do)
	}
	for sql, found := range faults {
		if !said[found] {
			t.Errorf("after %s nothing says: %s", sql, found)
		}
	}
	if len(findings) != len(faults) {
		t.Errorf("%d findings of %d faults", len(findings), len(faults))
	}
	want(t, checkPrivileges(t.Context(), conn), "postgresql.privileges", OK)
}
