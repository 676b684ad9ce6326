//go:build unix

package ops

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

func TestMain(m *testing.M) { testenv.VerifyMain(m, testenv.LeakOptions()...) }

func start(t *testing.T, dir string) *pgserver.Server {
	t.Helper()
	return testenv.OwnPostgres(t, pgserver.Config{Dir: dir, Fast: true, Settings: map[string]string{"shared_buffers": "16MB"}})
}

func connect(t *testing.T, address string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func exec(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

func texts(t *testing.T, conn *pgx.Conn, sql string, args ...any) []string {
	t.Helper()
	rows, _ := conn.Query(t.Context(), sql, args...)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return list
}

// used prepares a database with every kind of guard, and returns a grant of `orders/1`.
func used(t *testing.T, address string) fence.Grant {
	t.Helper()
	if err := migrate.Up(t.Context(), address, migrate.All); err != nil {
		t.Fatal(err)
	}
	conn := connect(t, address)
	exec(t, conn,
		`CREATE TABLE orders (id bigint PRIMARY KEY, note text)`,
		`CREATE TABLE parts (id bigint, note text) PARTITION BY RANGE (id)`,
		`CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (10)`,
		`CREATE TABLE rows (id bigint PRIMARY KEY, note text, token bigint)`,
		`CREATE SCHEMA "The App"`,
		`CREATE TABLE "The App"."A Table" (id bigint)`,
		`INSERT INTO orders VALUES (1, 'kept')`,
		`SELECT fence.protect('orders', resource => 'orders/1')`,
		`SELECT fence.protect('parts', under => 'orders/')`,
		`SELECT fence.protect('rows', per_row => $$'orders/' || id$$, stamp => 'token')`,
		`SELECT fence.protect_schema('"The App"', under => 'orders/')`,
		`SELECT fence.install_event_triggers()`,
	)
	g := fence.Grant{Resource: "orders/1", Token: 5, Seal: fence.NewSeal()}
	f := pgfence.New(testenv.PoolOf(t, address))
	if err := f.Arm(t.Context(), fence.Arming{Resource: g.Resource, Token: g.Token, SealHash: g.Seal.Hash(), Holder: "a"}); err != nil {
		t.Fatal(err)
	}
	if err := write(t, conn, g, `INSERT INTO rows VALUES (1, 'kept')`); err != nil {
		t.Fatal(err)
	}
	return g
}

func write(t *testing.T, conn *pgx.Conn, g fence.Grant, sql string) error {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if err := pgfence.Use(t.Context(), tx, g); err != nil {
		return err
	}
	if _, err := tx.Exec(t.Context(), sql); err != nil {
		return pgfence.Translate(err)
	}
	return tx.Commit(t.Context())
}

var guardedWrites = []string{
	`INSERT INTO orders VALUES (2, 'x')`, `INSERT INTO parts VALUES (1, 'x')`, `INSERT INTO parts_low VALUES (1, 'x')`,
	`UPDATE rows SET note = 'x'`, `INSERT INTO "The App"."A Table" VALUES (1)`,
}

// wantGuarded checks that every guard exists, enabled ALWAYS, and that only the recorded grant passes.
func wantGuarded(t *testing.T, address string, g fence.Grant) {
	t.Helper()
	conn := connect(t, address)
	if list := texts(t, conn, `SELECT relation::text || ': ' || reason FROM fence.uncovered`); len(list) > 0 {
		t.Errorf("uncovered: %v", list)
	}
	if list := texts(t, conn, `SELECT tgrelid::regclass::text || '.' || tgname FROM pg_trigger
		 WHERE tgfoid IN (SELECT oid FROM pg_proc WHERE pronamespace = 'fence'::regnamespace) AND tgenabled <> 'A' AND NOT tgisinternal`); len(list) > 0 {
		t.Errorf("not ENABLE ALWAYS: %v", list)
	}
	exec(t, conn, `SET session_replication_role = replica`)
	for _, sql := range guardedWrites {
		var refused *pgconn.PgError
		if _, err := conn.Exec(t.Context(), sql); !errors.As(err, &refused) || refused.Code != "ZF002" {
			t.Errorf("%s without a grant: %v", sql, err)
		}
	}
	exec(t, conn, `RESET session_replication_role`)
	for _, sql := range guardedWrites {
		if err := write(t, conn, g, sql); err != nil {
			t.Errorf("%s under the recorded grant: %v", sql, err)
		}
	}
	exec(t, conn, `CREATE TABLE "The App".later (id bigint)`) // protected by the event triggers
	if list := texts(t, conn, `SELECT relation::text FROM fence.protected WHERE relation = '"The App".later'::regclass`); len(list) != 1 {
		t.Error("a new table of a protected schema is not guarded")
	}
	if _, err := conn.Exec(t.Context(), `ALTER TABLE orders DISABLE TRIGGER fence_guard`); err == nil {
		t.Error("a guard can be disabled in spite of the event triggers")
	}
}

// identity returns the identity that a gateway records.
func identity(t *testing.T, address string) string {
	t.Helper()
	return texts(t, connect(t, address), `SELECT identity FROM fence.identity()`)[0]
}

// group identifies the database's keys on Redis nodes.
func group(t *testing.T, address string) string {
	t.Helper()
	return texts(t, connect(t, address), `SELECT id::text FROM fence.lock_group()`)[0]
}

// wantInvalidated checks that after invalidate_all the earlier grant is refused.
func wantInvalidated(t *testing.T, address string, g fence.Grant) {
	t.Helper()
	conn := connect(t, address)
	exec(t, conn, `SELECT fence.invalidate_all()`)
	if err := write(t, conn, g, guardedWrites[0]); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a grant from before: %v", err)
	}
}

func TestADumpBringsEverythingBackAndAsksForInvalidation(t *testing.T) {
	t.Parallel()
	server := start(t, "")
	g := used(t, server.URL("postgres"))
	exec(t, connect(t, server.URL("postgres")), `CREATE DATABASE restored TEMPLATE template0`)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	dump := filepath.Join(filepath.Dir(testenv.ServerDir(t)), "dump")
	if err := os.Chmod(filepath.Dir(dump), 0o777); err != nil { // PostgreSQL's user writes it
		t.Fatal(err)
	}
	host, port, _ := strings.Cut(server.Addr(), ":")
	login := []string{"--host", host, "--port", port, "--username", pgserver.Superuser, "--no-password"}
	if err := server.Tool(ctx, "pg_dump", append(login, "--format", "custom", "--file", dump, "postgres")...); err != nil {
		t.Fatal(err)
	}
	if err := server.Tool(ctx, "pg_restore", append(login, "--exit-on-error", "--dbname", "restored", dump)...); err != nil {
		t.Fatal(err)
	}
	wantGuarded(t, server.URL("restored"), g)
	// The copy accepts the original's grants, so a gateway must not mistake it for the original.
	if identity(t, server.URL("restored")) == identity(t, server.URL("postgres")) {
		t.Error("a restored dump has the identity of the original")
	}
	if group(t, server.URL("restored")) != group(t, server.URL("postgres")) {
		t.Error("a restored dump would see no lock of the original")
	}
	wantInvalidated(t, server.URL("restored"), g)
	if got := texts(t, connect(t, server.URL("restored")), `SELECT note FROM rows WHERE id = 1`); got[0] != "x" {
		t.Errorf("rows: %v", got)
	}
	// The copy's schema is fencegate's: up to date, and removable.
	state, err := migrate.Look(ctx, server.URL("restored"), migrate.All)
	if err != nil || !state.UpToDate() {
		t.Errorf("status of the restored database: %v %v", state, err)
	}
	// Loading data alone does not pass the guards.
	if err := server.Tool(ctx, "pg_restore", append(login, "--data-only", "--table", "orders", "--dbname", "postgres", dump)...); err == nil || !strings.Contains(err.Error(), "without a fencing token") {
		t.Errorf("restoring data into a guarded table: %v", err)
	}
}

func TestPgUpgradeKeepsTheGuards(t *testing.T) {
	t.Parallel()
	oldDir, newDir := testenv.ServerDir(t), testenv.ServerDir(t)
	older := start(t, oldDir)
	g := used(t, older.URL("postgres"))
	before, locks := identity(t, older.URL("postgres")), group(t, older.URL("postgres"))
	newer := start(t, newDir)
	// pg_upgrade logs in to both servers with one password.
	u, err := url.Parse(older.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	exec(t, connect(t, newer.URL("postgres")), fmt.Sprintf(`ALTER ROLE postgres PASSWORD '%s'`, password))
	for _, s := range []*pgserver.Server{older, newer} {
		if err := s.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	err = older.Tool(ctx, "pg_upgrade", "--old-bindir", older.BinDir(), "--new-bindir", newer.BinDir(),
		"--old-datadir", filepath.Join(oldDir, "data"), "--new-datadir", filepath.Join(newDir, "data"), "--username", pgserver.Superuser)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(newDir, "password"), []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	upgraded := start(t, newDir)
	wantGuarded(t, upgraded.URL("postgres"), g)
	if after := identity(t, upgraded.URL("postgres")); after == before {
		t.Errorf("the upgraded server is still %s", after)
	}
	if is := group(t, upgraded.URL("postgres")); is != locks {
		t.Errorf("the upgraded server's locks are those of group %s, and were of %s", is, locks)
	}
	wantInvalidated(t, upgraded.URL("postgres"), g)
}

func TestUninstallingLeavesNothing(t *testing.T) {
	t.Parallel()
	server := start(t, "")
	address := server.URL("postgres")
	conn := connect(t, address)
	// Schemas of temporary tables are excluded: PostgreSQL creates
	// them when a connection slot first needs them, and keeps them.
	const everything = `
		WITH n AS (SELECT * FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp_')
		SELECT 'schema ' || nspname FROM n UNION ALL SELECT 'relation ' || oid::regclass FROM pg_class WHERE relnamespace <> 'pg_toast'::regnamespace
		UNION ALL SELECT 'routine ' || oid::regprocedure FROM pg_proc UNION ALL SELECT 'type ' || oid::regtype FROM pg_type WHERE typnamespace <> 'pg_toast'::regnamespace
		UNION ALL SELECT 'trigger ' || tgname || ' on ' || tgrelid::regclass FROM pg_trigger UNION ALL SELECT 'event trigger ' || evtname FROM pg_event_trigger
		UNION ALL SELECT 'role ' || rolname FROM pg_roles UNION ALL SELECT 'member ' || roleid::regrole || ' ' || member::regrole FROM pg_auth_members
		UNION ALL SELECT 'acl ' || n.nspname || coalesce(n.nspacl::text, '') FROM n ORDER BY 1`
	exec(t, conn,
		`CREATE TABLE orders (id bigint PRIMARY KEY, note text)`,
		`CREATE TABLE parts (id bigint, note text) PARTITION BY RANGE (id)`,
		`CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (10)`,
		`CREATE TABLE rows (id bigint PRIMARY KEY, note text, token bigint)`,
		`CREATE SCHEMA "The App"`,
		`CREATE TABLE "The App"."A Table" (id bigint)`)
	before := strings.Join(texts(t, conn, everything), "\n")
	exec(t, conn, `DROP TABLE orders, parts, rows`, `DROP SCHEMA "The App" CASCADE`)
	used(t, address)

	var inUse *migrate.InUseError
	if err := migrate.Down(t.Context(), address, migrate.All, false); !errors.As(err, &inUse) || inUse.Fences != 1 || len(inUse.Protected) == 0 {
		t.Fatalf("removing it without force: %v", err)
	}
	if err := migrate.Down(t.Context(), address, migrate.All, true); err != nil {
		t.Fatal(err)
	}
	after := texts(t, conn, everything)
	for _, thing := range after {
		if !strings.Contains("\n"+before+"\n", "\n"+thing+"\n") {
			t.Errorf("left: %s", thing)
		}
	}
	if len(after) != strings.Count(before, "\n")+1 {
		t.Errorf("%d things before, %d after", strings.Count(before, "\n")+1, len(after))
	}
	exec(t, conn, guardedWrites...)
	if got := texts(t, conn, `SELECT note FROM orders WHERE id = 1`); len(got) != 1 || got[0] != "kept" {
		t.Errorf("the data: %v", got)
	}
}
