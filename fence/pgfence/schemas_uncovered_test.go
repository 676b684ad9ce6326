package pgfence_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// uncovered is the output of fence.uncovered, in one line.
func uncovered(t testing.TB, w world) string {
	t.Helper()
	return value[string](t, w, `SELECT coalesce(string_agg(relation || ': ' || reason, '; ' ORDER BY relation::text, reason), '') FROM fence.uncovered`)
}

// A child can be written through its parents, so they must be protected, too.
func TestAChildIsNotProtectedWithoutItsParents(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `CREATE TABLE m (id int) PARTITION BY RANGE (id); CREATE TABLE m1 PARTITION OF m FOR VALUES FROM (0) TO (9)`)
	w.exec(t, `CREATE TABLE par (id int); CREATE TABLE mid () INHERITS (par); CREATE TABLE leaf () INHERITS (mid)`)
	protect := func(table, resource string) error {
		_, err := w.admin.Exec(t.Context(), `SELECT fence.protect($1::text::regclass, resource => $2)`, table, resource)
		return err
	}
	for _, c := range []struct{ table, parent string }{{"m1", "public.m"}, {"leaf", "public."}} {
		err := protect(c.table, orders)
		wantCode(t, err, "55000")
		if !strings.Contains(err.Error(), "its parent "+c.parent) {
			t.Errorf("%s: %v", c.table, err)
		}
	}
	for _, table := range []string{"m", "par", "m1", "leaf"} { // the children have the same guards by now
		if err := protect(table, orders); err != nil {
			t.Errorf("%s: %v", table, err)
		}
	}
	wantCode(t, protect("leaf", "other"), "55000")
	if got := uncovered(t, w); got != "" {
		t.Errorf("uncovered: %s", got)
	}

	// The partition is attached later, to a parent without a guard, and to one that needs another resource.
	w.exec(t, `CREATE TABLE late (id int); SELECT fence.protect('late', resource => 'late')`)
	w.exec(t, `CREATE TABLE open (id int) PARTITION BY RANGE (id); ALTER TABLE open ATTACH PARTITION late FOR VALUES FROM (0) TO (9)`)
	w.exec(t, `CREATE TABLE later (id int); SELECT fence.protect('later', resource => 'later'); ALTER TABLE later INHERIT par`)
	want := "late: is written through its parent public.open, which has no guard; later: is written through its parent public.par, whose guard needs another resource"
	if got := uncovered(t, w); got != want {
		t.Errorf("uncovered: %s", got)
	}
}

func TestUncoveredMissesNoGuardThatWasDroppedOrWeakened(t *testing.T) {
	t.Parallel()
	const when = `CREATE TRIGGER fence_guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON work EXECUTE FUNCTION fence.guard('orders/1001')`
	for name, c := range map[string]struct{ sql, want string }{
		"dropped":    {`DROP TRIGGER fence_guard ON work`, "was dropped"},
		"disabled":   {`ALTER TABLE work DISABLE TRIGGER fence_guard`, "disabled"},
		"never":      {`DROP TRIGGER fence_guard ON work; ` + strings.Replace(when, "EXECUTE", "WHEN (false) EXECUTE", 1) + `; ALTER TABLE work ENABLE ALWAYS TRIGGER fence_guard`, "does not cover"},
		"one column": {`DROP TRIGGER fence_guard ON work; ` + strings.Replace(when, "UPDATE", "UPDATE OF note", 1) + `; ALTER TABLE work ENABLE ALWAYS TRIGGER fence_guard`, "does not cover"},
		"another":    {`DROP TRIGGER fence_guard ON work; ` + strings.Replace(when, "1001", "x", 1) + `; ALTER TABLE work ENABLE ALWAYS TRIGGER fence_guard`, "or changed"},
		"no needs":   {`DROP TRIGGER fence_guard ON work; ` + strings.Replace(when, "'orders/1001'", "", 1) + `; ALTER TABLE work ENABLE ALWAYS TRIGGER fence_guard`, "does not cover"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			w.exec(t, c.sql)
			if got := uncovered(t, w); !strings.Contains(got, "work: ") || !strings.Contains(got, c.want) {
				t.Errorf("uncovered: %q, want %q", got, c.want)
			}
			w.exec(t, `SELECT fence.protect('work', resource => $1)`, orders)
			if got := uncovered(t, w); got != "" {
				t.Errorf("protected again: %q", got)
			}
			w.exec(t, `SELECT fence.unprotect('work')`)
			if got := uncovered(t, w); got != "" || value[int](t, w, `SELECT count(*) FROM fence.registry`) != 0 {
				t.Errorf("unprotected: %q", got)
			}
		})
	}
}

// PostgreSQL compiles a query whose estimated cost exceeds jit_above_cost, which took seconds. The estimate does not
// depend on the machine.
func TestLookingForUncoveredTablesIsNotCompiled(t *testing.T) {
	t.Parallel()
	w := setup(t)
	if plan := value[string](t, w, `EXPLAIN (FORMAT JSON) SELECT * FROM fence.uncovered`); strings.Contains(plan, `"JIT"`) {
		t.Errorf("the query is compiled: %s", plan)
	}
	if !value[bool](t, w, `SELECT 'jit=off' = ANY (proconfig) FROM pg_proc WHERE oid = to_regproc('fence.find_uncovered')`) {
		t.Error("the function that looks may be compiled")
	}
}

// Only its owner can remove a table from the registry.
func TestTheRegistryForgetsForTheOwnerOnly(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `DROP TRIGGER fence_guard ON work`)
	stranger := connect(t, w.pg.As(t, "fence_protector"))
	if _, err := stranger.Exec(t.Context(), `SELECT fence.leave('work'), fence.remember('work'), fence.unprotect('work')`); err != nil {
		t.Fatal(err)
	}
	if got := uncovered(t, w); !strings.Contains(got, "was dropped") {
		t.Errorf("uncovered: %q", got)
	}
	w.exec(t, `DROP TABLE work`)
	if got := uncovered(t, w); got != "" {
		t.Errorf("a table that is gone: %q", got)
	}
}

// The publisher's fence has judged the writes of a subscription, so the guard lets its copy and its TRUNCATE pass.
func TestASubscriptionPassesTheGuard(t *testing.T) {
	t.Parallel()
	publisher, w := setup(t), setup(t)
	for _, w := range []world{publisher, w} {
		w.exec(t, `CREATE TABLE shared (id int PRIMARY KEY)`)
	}
	slot := "s_" + publisher.pg.Database
	publisher.exec(t, `INSERT INTO shared VALUES (1); CREATE PUBLICATION p FOR TABLE shared`)
	publisher.exec(t, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, slot)
	t.Cleanup(func() { dropSlot(t, publisher, slot) })
	w.exec(t, `SELECT fence.protect('shared', resource => 'shared')`)
	w.exec(t, `CREATE SUBSCRIPTION s CONNECTION '`+publisher.pg.URL+`' PUBLICATION p WITH (create_slot = false, slot_name = '`+slot+`')`)
	t.Cleanup(func() { dropSubscription(t, w) })
	w.waitFor(t, "the copy is done", `SELECT count(*) = 1 FROM shared`)
	w.waitFor(t, "changes are applied", `SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel`)
	publisher.exec(t, `INSERT INTO shared VALUES (2)`)
	w.waitFor(t, "a row is applied", `SELECT count(*) = 2 FROM shared`)
	publisher.exec(t, `TRUNCATE shared`)
	w.waitFor(t, "TRUNCATE is applied", `SELECT count(*) = 0 FROM shared`)

	for _, options := range []string{"", "-c session_replication_role=replica"} { // only the worker passes
		_, err := connect(t, w.pg.URL, options).Exec(t.Context(), `TRUNCATE shared`)
		wantCode(t, err, "ZF002")
	}
}

// The guard lets the worker write published rows. A subscriber's trigger fired by them needs a grant like any other
// writer.
func TestASubscribersOwnTriggerNeedsAGrant(t *testing.T) {
	t.Parallel()
	publisher, w := setup(t), setup(t)
	for _, w := range []world{publisher, w} {
		w.exec(t, `CREATE TABLE shared (id int PRIMARY KEY); CREATE TABLE too (id int PRIMARY KEY)`)
	}
	slot := "s_" + publisher.pg.Database
	publisher.exec(t, `INSERT INTO shared VALUES (1); CREATE PUBLICATION p FOR TABLE shared, too`)
	publisher.exec(t, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, slot)
	t.Cleanup(func() { dropSlot(t, publisher, slot) })
	w.exec(t, `CREATE TABLE other (id int); CREATE TABLE said (code text); CREATE SEQUENCE refusals`)
	w.exec(t, `SELECT fence.protect('shared', resource => 'shared'), fence.protect('too', resource => 'too'), fence.protect('other', resource => 'other')`)
	w.exec(t, `CREATE FUNCTION echo() RETURNS trigger LANGUAGE plpgsql AS $$
		DECLARE sql text;
		BEGIN
		  FOREACH sql IN ARRAY ARRAY['INSERT INTO public.other VALUES (1)', 'INSERT INTO public.too VALUES (7)', 'TRUNCATE public.too', 'UPDATE public.other SET id = 2'] LOOP
		    BEGIN
		      EXECUTE sql;
		      INSERT INTO public.said VALUES ('passed: ' || sql);
		    EXCEPTION WHEN SQLSTATE 'ZF002' THEN PERFORM nextval('public.refusals');
		    END;
		  END LOOP;
		  RETURN new;
		END $$`)
	w.exec(t, `CREATE TRIGGER echo AFTER INSERT ON shared FOR EACH ROW EXECUTE FUNCTION echo(); ALTER TABLE shared ENABLE ALWAYS TRIGGER echo`)
	w.exec(t, `CREATE SUBSCRIPTION s CONNECTION '`+publisher.pg.URL+`' PUBLICATION p WITH (create_slot = false, slot_name = '`+slot+`')`)
	t.Cleanup(func() { dropSubscription(t, w) })
	w.waitFor(t, "the copy is done", `SELECT count(*) = 1 FROM shared`)
	w.waitFor(t, "changes are applied", `SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel`)
	publisher.exec(t, `INSERT INTO shared VALUES (2)`)
	w.waitFor(t, "a row is applied", `SELECT count(*) = 2 FROM shared`)
	if got := value[string](t, w, `SELECT coalesce(string_agg(code, '; '), '') FROM said`); got != "" {
		t.Error(got)
	}
	if n := value[int](t, w, `SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM refusals`); n < 8 {
		t.Errorf("%d refusals, want 8", n)
	}
}

// asAdmin runs statements after the test's context has ended, within half a minute: the end of a subscription waits for
// its workers, and those may wait for another test's CREATE SUBSCRIPTION, which waits for this one.
func asAdmin(t testing.TB, w world, statements ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, w.pg.URL)
	if err != nil {
		t.Error(err)
		return
	}
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
	_ = conn.Close(ctx)
}

func dropSubscription(t testing.TB, w world) {
	t.Helper()
	asAdmin(t, w, `ALTER SUBSCRIPTION s DISABLE`, `ALTER SUBSCRIPTION s SET (slot_name = NONE)`, `DROP SUBSCRIPTION s`)
}

// dropSlot ends the sender of a dropped subscription, and drops its slot.
func dropSlot(t testing.TB, w world, slot string) {
	t.Helper()
	asAdmin(t, w, `SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = '`+slot+`' AND active`,
		`SELECT pg_drop_replication_slot('`+slot+`')`)
}
