//go:build unix

package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

func TestMain(m *testing.M) { testenv.VerifyMain(m, testenv.LeakOptions()...) }

func exec(t *testing.T, url string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// want finds the most severe finding of a check and compares it.
func want(t *testing.T, findings []Finding, check string, status Status, words ...string) {
	t.Helper()
	var found *Finding
	for i, f := range findings {
		if f.Check == check && (found == nil || f.Status > found.Status) {
			found = &findings[i]
		}
	}
	if found == nil {
		t.Errorf("%s was not looked at: %+v", check, findings)
		return
	}
	if found.Status != status {
		t.Errorf("%s: %+v; want %s", check, *found, status)
	}
	if found.Status != OK && found.Do == "" {
		t.Errorf("%s says nothing of what to do: %+v", check, *found)
	}
	for _, w := range words {
		if !strings.Contains(found.Found+" "+found.Do, w) {
			t.Errorf("%s: %+v; want it to name %q", check, *found, w)
		}
	}
}

func examine(t *testing.T, url string) []Finding {
	t.Helper()
	return Examine(t.Context(), Config{PostgresURL: url, Patience: time.Minute})
}

// with adds a startup option to an address.
func with(url, option string) string { return url + "&options=-c%20" + option }

const table = `CREATE TABLE orders (id bigint PRIMARY KEY)`

func TestASoundDatabaseIsOKFromEachLogin(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	exec(t, pg.URL, table, `SELECT fence.protect('orders', under => 'orders/')`, `SELECT fence.install_event_triggers()`)
	for login, url := range map[string]string{"superuser": pg.URL, "gateway": pg.GatewayURL, "writer": pg.WriterURL, "other": pg.OtherURL} {
		findings := examine(t, url)
		for _, f := range findings {
			// The tests' server runs without fsync, and a gateway needs its own login.
			expected := f.Check == "postgresql.durability" || f.Check == "postgresql.timeouts" || f.Check == "postgresql.login" ||
				f.Check == "postgresql.prepared-transactions" || f.Check == "postgresql.standbys" ||
				f.Check == "postgresql.unsealed" && (login == "writer" || login == "other") // these logins may not see the patterns
			if f.Status != OK && !expected {
				t.Errorf("as %s: %+v", login, f)
			}
		}
		want(t, findings, "postgresql.durability", Fail, "fsync")
	}
	want(t, examine(t, pg.GatewayURL), "postgresql.login", OK)
	want(t, examine(t, pg.WriterURL), "postgresql.login", Warn, `GRANT fence_gateway TO "fencegate_test_writer";`)
}

func TestEachFaultOfADatabaseIsFound(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]struct {
		before []string // as the superuser
		option string   // of doctor's own session
		check  string
		status Status
		words  []string
	}{
		"nothing protected":           {check: "postgresql.guards", status: Warn, words: []string{"protect"}},
		"guard disabled":              {before: []string{`SELECT fence.protect('orders', under => 'orders/')`, `ALTER TABLE orders DISABLE TRIGGER fence_guard`}, check: "postgresql.guards", status: Fail, words: []string{"orders", "disabled"}},
		"guard dropped":               {before: []string{`SELECT fence.protect('orders', under => 'orders/')`, `DROP TRIGGER fence_guard ON orders`}, check: "postgresql.guards", status: Fail, words: []string{"orders", "dropped"}},
		"report mode":                 {before: []string{`SELECT fence.protect('orders', under => 'orders/', mode => 'report')`}, check: "postgresql.guards", status: Warn, words: []string{"orders", "enforce"}},
		"unsealed":                    {before: []string{`INSERT INTO fence.unsealed VALUES ('x/*')`}, check: "postgresql.unsealed", status: Warn},
		"no event triggers":           {check: "postgresql.event-triggers", status: Warn, words: []string{"events install"}},
		"event trigger dropped":       {before: []string{`SELECT fence.install_event_triggers()`, `DROP EVENT TRIGGER fence_keep_dropped`}, check: "postgresql.event-triggers", status: Fail, words: []string{"missing", "keep_dropped", "events install"}},
		"event triggers outdated":     {before: []string{`SELECT fence.install_event_triggers()`, `COMMENT ON SCHEMA fence_events IS 'fencegate event triggers 0123456789ab'`}, check: "postgresql.event-triggers", status: Warn, words: []string{"another version", "events install"}},
		"event trigger of the owner":  {before: []string{`CREATE FUNCTION fence.watch() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END'`, `ALTER FUNCTION fence.watch() OWNER TO fence_owner`, `CREATE EVENT TRIGGER watch ON ddl_command_end EXECUTE FUNCTION fence.watch()`}, check: "postgresql.event-triggers", status: Fail, words: []string{"fence.watch()", "replace", "events install"}},
		"stranger among the triggers": {before: []string{`SELECT fence.install_event_triggers()`, `CREATE FUNCTION fence_events.x() RETURNS int LANGUAGE sql AS 'SELECT 1'; ALTER FUNCTION fence_events.x() OWNER TO fence_owner`}, check: "postgresql.event-triggers", status: Fail, words: []string{"fence_events.x()", "DROP ROUTINE"}},
		"protector can't use guards":  {before: []string{`REVOKE EXECUTE ON FUNCTION fence.guard() FROM fence_protector`}, check: "postgresql.privileges", status: Fail, words: []string{"fence_protector may not call"}},
		"event trigger not always":    {before: []string{`SELECT fence.install_event_triggers()`, `ALTER EVENT TRIGGER fence_keep ENABLE`}, check: "postgresql.event-triggers", status: Fail, words: []string{"fence_keep", "ENABLE ALWAYS"}},
		"guard not always":            {before: []string{`SELECT fence.protect('orders', under => 'orders/')`, `ALTER TABLE orders ENABLE TRIGGER fence_guard`}, check: "postgresql.guards", status: Fail, words: []string{"orders", "protect"}},
		"guard of rows dropped":       {before: []string{`SELECT fence.protect('orders', per_row => 'id::text')`, `DROP TRIGGER fence_update ON orders`}, check: "postgresql.guards", status: Fail, words: []string{"orders"}},
		"partition without a guard":   {before: []string{`CREATE TABLE parts (id int) PARTITION BY LIST (id)`, `SELECT fence.protect('parts', under => 'x/')`, `CREATE TABLE late PARTITION OF parts DEFAULT`}, check: "postgresql.guards", status: Fail, words: []string{"late"}},
		"identity none":               {before: []string{`SELECT fence.protect('orders', under => 'x/')`, `ALTER TABLE orders REPLICA IDENTITY NOTHING`, `CREATE PUBLICATION p FOR ALL TABLES`}, check: "postgresql.replica-identity", status: Warn, words: []string{"orders"}},
		"identity is a lost index":    {before: []string{`CREATE TABLE bare (v int NOT NULL)`, `CREATE UNIQUE INDEX i ON bare (v)`, `ALTER TABLE bare REPLICA IDENTITY USING INDEX i`, `DROP INDEX i`, `SELECT fence.protect('bare', under => 'x/')`, `CREATE PUBLICATION p FOR TABLE bare`}, check: "postgresql.replica-identity", status: Warn, words: []string{"bare"}},
		"identity full":               {before: []string{`CREATE TABLE bare (v int)`, `ALTER TABLE bare REPLICA IDENTITY FULL`, `SELECT fence.protect('bare', under => 'x/')`, `CREATE PUBLICATION p FOR TABLE bare`}, check: "postgresql.replica-identity", status: OK},
		"patterns writable":           {before: []string{`GRANT INSERT ON fence.unsealed TO fence_writer`}, check: "postgresql.privileges", status: Fail, words: []string{"INSERT fence.unsealed", "REVOKE INSERT"}},
		"seals readable":              {before: []string{`GRANT SELECT ON fence.resources TO PUBLIC`}, check: "postgresql.privileges", status: Fail, words: []string{"everybody may SELECT fence.resources"}},
		"everybody arms":              {before: []string{`GRANT EXECUTE ON FUNCTION fence.arm TO PUBLIC`}, check: "postgresql.privileges", status: Fail, words: []string{"everybody may call fence.arm("}},
		"gateway invalidates":         {before: []string{`GRANT EXECUTE ON FUNCTION fence.invalidate_all TO fence_gateway`}, check: "postgresql.privileges", status: Fail, words: []string{"fence_gateway may call fence.invalidate_all"}},
		"gateway can't arm at once":   {before: []string{`REVOKE EXECUTE ON FUNCTION fence.arm FROM fence_gateway`}, check: "postgresql.privileges", status: Fail, words: []string{"fence_gateway may not call fence.arm("}},
		"foreign owner of a guard":    {before: []string{`ALTER FUNCTION fence.guard() OWNER TO fencegate_test_other`}, check: "postgresql.privileges", status: Fail, words: []string{"fence.guard()", "ALTER ROUTINE"}},
		"foreign owner of it all":     {before: []string{`ALTER SCHEMA fence OWNER TO fencegate_test_other`}, check: "postgresql.privileges", status: Fail, words: []string{"schema fence belongs to"}},
		"schema closed":               {before: []string{`REVOKE USAGE ON SCHEMA fence FROM PUBLIC`}, check: "postgresql.privileges", status: Fail, words: []string{"may not use the schema fence"}},
		"event trigger disabled":      {before: []string{`SELECT fence.install_event_triggers()`, `ALTER EVENT TRIGGER fence_keep DISABLE`}, check: "postgresql.event-triggers", status: Fail, words: []string{"fence_keep"}},
		"no idle timeout":             {option: "idle_in_transaction_session_timeout=0", check: "postgresql.timeouts", status: Warn},
		"idle timeout":                {option: "idle_in_transaction_session_timeout=60s", check: "postgresql.timeouts", status: OK},
		"short statement timeout":     {option: "statement_timeout=999ms", check: "postgresql.statement-timeout", status: Warn},
		"short lock timeout":          {option: "lock_timeout=999ms", check: "postgresql.lock-timeout", status: Warn},
		"isolation":                   {option: "default_transaction_isolation=serializable", check: "postgresql.isolation", status: Fail},
		"read only":                   {option: "default_transaction_read_only=on", check: "postgresql.primary", status: Fail},
		"asynchronous commit":         {option: "synchronous_commit=off", check: "postgresql.synchronous-commit", status: Warn},
		"prepared transaction":        {before: []string{`BEGIN; INSERT INTO orders VALUES (1); PREPARE TRANSACTION 'doctor-NAME'`}, check: "postgresql.prepared-transactions", status: Warn, words: []string{"doctor-"}},
		"fences writable":             {before: []string{`GRANT UPDATE ON fence.resources TO fence_writer`}, check: "postgresql.privileges", status: Fail, words: []string{"fence_writer", "REVOKE UPDATE ON fence.resources"}},
		"everybody raises":            {before: []string{`GRANT EXECUTE ON FUNCTION fence.raise TO PUBLIC`}, check: "postgresql.privileges", status: Fail, words: []string{"everybody", "fence.raise"}},
		"gateway can't arm":           {before: []string{`REVOKE EXECUTE ON FUNCTION fence.raise FROM fence_gateway`}, check: "postgresql.privileges", status: Fail, words: []string{"GRANT EXECUTE ON ROUTINE fence.raise"}},
		"writer can't use":            {before: []string{`REVOKE EXECUTE ON FUNCTION fence.use(text, text) FROM fence_writer`}, check: "postgresql.privileges", status: Fail, words: []string{"fence_writer may not call"}},
		"foreign owner":               {before: []string{`ALTER TABLE fence.resources OWNER TO fencegate_test_other`}, check: "postgresql.privileges", status: Fail, words: []string{"belongs to fencegate_test_other"}},
		"no replica identity":         {before: []string{`CREATE TABLE bare (v int)`, `SELECT fence.protect('bare', under => 'x/')`, `CREATE PUBLICATION p FOR TABLE bare`}, check: "postgresql.replica-identity", status: Warn, words: []string{"bare", "REPLICA IDENTITY"}},
		"older schema":                {before: []string{testenv.Renote(`split_part(note, ',', 1)`)}, check: "postgresql.schema", status: Fail, words: []string{"migrate up"}},
		"schema dropped":              {before: []string{`DROP SCHEMA fence, objects CASCADE`}, check: "postgresql.schema", status: Fail, words: []string{"was dropped", "backup"}},
		"schema of another baseline":  {before: []string{`COMMENT ON SCHEMA fence IS 'fencegate fence state 8, code 25 d5b34d8bc724'`}, check: "postgresql.schema", status: Fail, words: []string{"another baseline", "state 8", "Make the database again"}},
		"old function":                {before: []string{`CREATE FUNCTION fence.check() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS 'SELECT 1::bigint'`}, check: "postgresql.schema", status: Fail, words: []string{"fence.check()", "DROP FUNCTION"}},
		"guards of an older version": {
			before: []string{
				`SELECT fence.protect('orders', under => 'x/', stamp => 'id')`,
				`DO $$ BEGIN EXECUTE format('COMMENT ON FUNCTION fence.rows_%s IS NULL', (SELECT number FROM fence.registry)); END $$`,
			},
			check: "postgresql.generations", status: Warn, words: []string{"orders", "fence refresh orders"},
		},
		"newer schema":              {before: []string{testenv.Renote(`replace(note, 'state 1 ', 'state 999999 ')`)}, check: "postgresql.schema", status: Fail, words: []string{"newer"}},
		"interrupted schema":        {before: []string{`UPDATE fencegate.fence_state SET dirty = true`}, check: "postgresql.schema", status: Fail, words: []string{"interrupted"}},
		"writer may raise all rows": {before: []string{`GRANT EXECUTE ON FUNCTION fence.invalidate_all TO fence_writer`}, check: "postgresql.privileges", status: Fail, words: []string{"invalidate_all"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pg := testenv.Postgres(t)
			exec(t, pg.URL, table)
			for _, sql := range broken.before {
				sql = strings.ReplaceAll(sql, "NAME", pg.Database)
				if begin, rest, ok := strings.Cut(sql, "BEGIN; "); ok && begin == "" {
					prepare(t, pg.URL, rest)
					continue
				}
				exec(t, pg.URL, sql)
			}
			url := pg.URL
			if broken.option != "" {
				url = with(url, strings.Replace(broken.option, "=", "%3D", 1))
			}
			want(t, examine(t, url), broken.check, broken.status, broken.words...)
		})
	}
}

// These cases concern the whole server: roles, its configuration, its standbys.
func TestEachFaultOfAServerIsFound(t *testing.T) {
	t.Parallel()
	server := startServer(t, "")
	if err := migrate.Up(t.Context(), server.URL("postgres"), migrate.All); err != nil {
		t.Fatal(err)
	}
	for _, broken := range []struct {
		check        string
		do, undo     string
		status, then Status
		words        []string
	}{
		{"postgresql.roles", `ALTER ROLE fence_writer RENAME TO w`, `ALTER ROLE w RENAME TO fence_writer`, Fail, OK, []string{"no role fence_writer"}},
		{"postgresql.roles", `ALTER ROLE fence_gateway LOGIN`, `ALTER ROLE fence_gateway NOLOGIN`, Warn, OK, []string{"fence_gateway can log in"}},
		{"postgresql.roles", `ALTER ROLE fence_writer SUPERUSER`, `ALTER ROLE fence_writer NOSUPERUSER`, Fail, OK, []string{"fence_writer is a superuser"}},
		{"postgresql.roles", `GRANT fence_owner TO fence_writer`, `REVOKE fence_owner FROM fence_writer`, Fail, OK, []string{"REVOKE fence_owner FROM fence_writer"}},
		{"postgresql.pg-signal-backend", `REVOKE pg_signal_backend FROM fence_owner`, `GRANT pg_signal_backend TO fence_owner`, Warn, OK, []string{"GRANT pg_signal_backend TO fence_owner"}},
		{"postgresql.durability", `ALTER SYSTEM SET fsync = off`, `ALTER SYSTEM RESET fsync`, Fail, OK, []string{"fsync is off"}},
		{"postgresql.durability", `ALTER SYSTEM SET full_page_writes = off`, `ALTER SYSTEM RESET full_page_writes`, Warn, OK, []string{"full_page_writes"}},
	} {
		reconfigure(t, server.URL("postgres"), broken.do)
		want(t, examine(t, server.URL("postgres")), broken.check, broken.status, broken.words...)
		reconfigure(t, server.URL("postgres"), broken.undo)
		want(t, examine(t, server.URL("postgres")), broken.check, broken.then)
	}

	want(t, examine(t, server.URL("postgres")), "postgresql.standbys", OK)
	dir := testenv.ServerDir(t)
	if err := server.CopyTo(t.Context(), dir, true); err != nil {
		t.Fatal(err)
	}
	standby := startServer(t, dir)
	want(t, examine(t, standby.URL("postgres")), "postgresql.primary", Fail, "standby", "primary")
	super := connect(t, server.URL("postgres"))
	await(t, super, "the standby streams", `SELECT EXISTS (SELECT FROM pg_stat_replication WHERE state = 'streaming')`)
	want(t, examine(t, server.URL("postgres")), "postgresql.standbys", Warn, "asynchronous", "synchronous_standby_names")
	exec(t, server.URL("postgres"), `CREATE ROLE gateway LOGIN PASSWORD 'gateway' IN ROLE fence_gateway`)
	asGateway := loginOf(t, server.URL("postgres"), "gateway")
	want(t, examine(t, asGateway), "postgresql.standbys", Warn, "1 replication connection(s) exist whose state this login may not see", "pg_monitor")
	exec(t, server.URL("postgres"), `GRANT pg_monitor TO gateway`)
	want(t, examine(t, asGateway), "postgresql.standbys", Warn, "1 of 1", "asynchronous")
	reconfigure(t, server.URL("postgres"), `ALTER SYSTEM SET synchronous_standby_names = '*'`)
	await(t, super, "the standby is synchronous", `SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')`)
	want(t, examine(t, server.URL("postgres")), "postgresql.standbys", OK)
}

// loginOf replaces the login of an address, whose password is its name.
func loginOf(t *testing.T, address, login string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(login, login)
	return u.String()
}

// reconfigure runs a statement, and reloads the configuration. What has reached one session, new ones begin with.
func reconfigure(t *testing.T, url, statement string) {
	t.Helper()
	conn := connect(t, url)
	var loaded time.Time
	if err := conn.QueryRow(t.Context(), `SELECT pg_conf_load_time()`).Scan(&loaded); err != nil {
		t.Fatal(err)
	}
	exec(t, url, statement, `SELECT pg_reload_conf()`)
	await(t, conn, "the configuration is reloaded", `SELECT pg_conf_load_time() > $1`, loaded)
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// await waits until a query returns true.
func await(t *testing.T, conn *pgx.Conn, what, sql string, args ...any) {
	t.Helper()
	testenv.Eventually(t, what, func() (is bool) {
		if err := conn.QueryRow(t.Context(), sql, args...).Scan(&is); err != nil {
			t.Fatal(err)
		}
		return is
	})
}

func startServer(t *testing.T, dir string) *pgserver.Server {
	t.Helper()
	settings := map[string]string{"wal_level": "replica", "max_wal_senders": "4", "hot_standby": "on", "shared_buffers": "16MB"}
	return testenv.OwnPostgres(t, pgserver.Config{Dir: dir, Settings: settings})
}

func TestOldVersionsAreFound(t *testing.T) {
	t.Parallel()
	want(t, []Finding{judgeVersion("v", 130012, "13.12")}, "v", Fail, "13.12", "14 or newer")
	want(t, []Finding{judgeVersion("v", 150006, "15.6")}, "v", OK)
}

func TestAClockThatDiffersIsFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		want(t, []Finding{judgeClock("c", now, now)}, "c", OK)
		for _, there := range []time.Time{now.Add(time.Hour), now.Add(-time.Hour)} {
			want(t, []Finding{judgeClock("c", there, now)}, "c", Warn, "1h0m0s", "NTP")
		}
	})
}

// A check for which the login lacks rights is reported, and does not pass.
func TestWhatCannotBeLookedAtIsSaid(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	exec(t, pg.URL, `REVOKE SELECT ON fence.uncovered FROM PUBLIC`, `REVOKE ALL ON fencegate.fence_state FROM PUBLIC`)
	findings := examine(t, pg.OtherURL)
	want(t, findings, "postgresql.guards", Warn, "could not be checked")

	exec(t, pg.URL, `REVOKE USAGE ON SCHEMA fence FROM PUBLIC`)
	findings = examine(t, pg.OtherURL)
	want(t, findings, "postgresql.schema", Warn, "could not be checked")
	want(t, findings, "postgresql.guards", Warn, "could not be checked")
	want(t, findings, "postgresql.privileges", Fail, "GRANT USAGE ON SCHEMA fence TO PUBLIC")
}

// prepare runs statements in one transaction.
func prepare(t *testing.T, url, statements string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	for _, sql := range append([]string{"BEGIN"}, strings.Split(statements, "; ")...) {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

func TestADatabaseWithoutAFenceAndAnUnreachableOneAreFound(t *testing.T) {
	t.Parallel()
	want(t, examine(t, testenv.PostgresEmpty(t).URL), "postgresql.schema", Fail, "migrate up")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := ln.Addr().String()
	_ = ln.Close()
	for _, url := range []string{"postgres://u:geheim@" + gone + "/d", "postgres://u:geheim@" + gone + "/d?sslmode=nonsense"} {
		findings := examine(t, url)
		want(t, findings, "postgresql.reachable", Fail)
		if text := fmt.Sprint(findings); strings.Contains(text, "geheim") {
			t.Errorf("a password was printed: %s", text)
		}
	}
}

func TestAGatewayAndABlobFolderAreExamined(t *testing.T) {
	t.Parallel()
	status := http.StatusOK
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(`{"status": "ready", "detail": "PostgreSQL may have forgotten fences", "path": "` + r.URL.Path + `"}`))
	}))
	defer srv.Close()
	look := func(url string) []Finding { return Examine(t.Context(), Config{GatewayURL: url}) }
	want(t, look(srv.URL), "gateway.ready", OK)
	status = http.StatusServiceUnavailable
	want(t, look(srv.URL), "gateway.ready", Fail, "forgotten fences")
	want(t, look("http://127.0.0.1:1"), "gateway.reachable", Fail)
	want(t, look("127.0.0.1:1"), "gateway.reachable", Fail)

	dir := t.TempDir()
	want(t, Examine(t.Context(), Config{BlobDir: dir}), "blobs.writable", OK)
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("doctor left %v", left)
	}
	want(t, Examine(t.Context(), Config{BlobDir: filepath.Join(dir, "none")}), "blobs.writable", Fail)
}

func TestFindingsArePrintedForPeopleAndPrograms(t *testing.T) {
	t.Parallel()
	findings := []Finding{ok("a.b", "fine"), fail("c.d", "broken\nthing", "repair it")}
	var text, structured bytes.Buffer
	if err := Print(&text, findings); err != nil || text.String() != "OK    a.b: fine\nFAIL  c.d: broken thing\n      → repair it\n" {
		t.Errorf("%v\n%s", err, text.String())
	}
	var back struct {
		Status   string
		Findings []struct{ Check, Status, Found, Do string }
	}
	if err := PrintJSON(&structured, findings); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(structured.Bytes(), &back); err != nil || back.Status != "FAIL" || len(back.Findings) != 2 || back.Findings[1].Do != "repair it" {
		t.Errorf("%v %+v", err, back)
	}
}
