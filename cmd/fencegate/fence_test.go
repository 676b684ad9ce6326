package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
)

// ok runs a command line that must succeed, and returns its output.
func ok(t *testing.T, vars map[string]string, args ...string) string {
	t.Helper()
	code, stdout, stderr := cli(t, vars, args...)
	if code != exitOK {
		t.Fatalf("%v: exit code %d, %s", args, code, stderr)
	}
	return stdout
}

func runSQL(t *testing.T, url string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	for _, sql := range statements {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

func grant(t *testing.T, url, resource string, token fence.Token) fence.Grant {
	t.Helper()
	g := fence.Grant{Resource: resource, Token: token, Seal: fence.NewSeal()}
	arming := fence.Arming{Resource: resource, Token: token, SealHash: g.Seal.Hash(), Holder: "worker-a"}
	if err := pgfence.New(testenv.PoolOf(t, url)).Arm(t.Context(), arming); err != nil {
		t.Fatal(err)
	}
	return g
}

func TestFencesAreListedShownAndRevokedWithoutAGateway(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	vars := map[string]string{"FENCEGATE_POSTGRES_URL": pg.GatewayURL}
	for i, resource := range []string{"orders/1", "orders/2", "reports/q3"} {
		grant(t, pg.GatewayURL, resource, fence.Token(i+5))
	}
	if out := ok(t, vars, "fence", "ls", "orders/"); !strings.Contains(out, "orders/1") || !strings.Contains(out, "worker-a") || strings.Contains(out, "reports") {
		t.Errorf("ls orders/:\n%s", out)
	}
	var listed []fence.Record
	if err := json.Unmarshal([]byte(ok(t, vars, "fence", "ls", "--after", "orders/1", "--limit", "1", "--json")), &listed); err != nil || len(listed) != 1 || listed[0].Resource != "orders/2" {
		t.Errorf("one page: %v %+v", err, listed)
	}
	code, stdout, stderr := cli(t, vars, "revoke", "orders/1", "--by", "alice")
	if code != exitOK || stdout != "orders/1: the fence stands at 6; its former holder is refused\n" || !strings.Contains(stderr, "no lock on Redis was freed") {
		t.Errorf("revoked: %d %q %q", code, stdout, stderr)
	}
	var one fence.Record
	if err := json.Unmarshal([]byte(ok(t, vars, "fence", "show", "orders/1", "--json")), &one); err != nil || one.Token != 6 || one.Holder != "alice" || !one.Sealed {
		t.Errorf("shown: %v %+v", err, one)
	}
	if code, _, stderr := cli(t, vars, "fence", "show", "nobody's"); code == exitOK || !strings.Contains(stderr, "no fence") {
		t.Errorf("a resource without a fence: %d %s", code, stderr)
	}
	if code, _, _ := cli(t, map[string]string{"FENCEGATE_POSTGRES_URL": pg.WriterURL}, "revoke", "orders/1"); code == exitOK {
		t.Error("a writer's login may revoke")
	}
}

func TestADatabaseWithoutFencegatesSchemaIsSaidWithWhatToDo(t *testing.T) {
	t.Parallel()
	vars := map[string]string{"FENCEGATE_POSTGRES_URL": testenv.PostgresEmpty(t).URL}
	for _, args := range [][]string{
		{"fence", "ls"},
		{"fence", "uncovered"},
		{"revoke", "orders/1001"},
		{"protect", "orders", "--under", "orders/"},
		{"objects", "ls", "orders"},
	} {
		code, stdout, stderr := cli(t, vars, args...)
		if code != exitFailed || stdout != "" || !strings.Contains(stderr, "hint: the database may not be migrated") {
			t.Errorf("%v: %d\n%s%s", args, code, stdout, stderr)
		}
	}
	pg := testenv.Postgres(t)
	runSQL(t, pg.URL, "CREATE TABLE guarded (id int)")
	migrated := map[string]string{"FENCEGATE_POSTGRES_URL": pg.URL}
	if code, _, stderr := cli(t, migrated, "protect", "nowhere", "--under", "orders/"); code != exitFailed || strings.Contains(stderr, "migrated") {
		t.Errorf("a table that is not there: %d\n%s", code, stderr)
	}
	if code, _, stderr := cli(t, migrated, "protect", "guarded", "--under", "no\nname/"); code != exitUsage {
		t.Errorf("a resource that is none: %d\n%s", code, stderr)
	}
	if out := ok(t, migrated, "protect", "guarded", "--under", "orders/"); out != "guarded: protected\n" {
		t.Errorf("protected: %q", out)
	}
	strange := map[string]string{"FENCEGATE_POSTGRES_URL": pg.As(t)}
	for hint, args := range map[string][]string{
		"hint: The owner of a protected table is fence_protector: GRANT fence_protector TO": {"protect", "guarded", "--under", "orders/"},
		"hint: use the login that the command's --help names at --postgres-url":             {"revoke", "orders/1001"},
	} {
		if code, _, stderr := cli(t, strange, args...); code != exitForbidden || !strings.Contains(stderr, hint) {
			t.Errorf("%v without the right: %d\n%s", args, code, stderr)
		}
	}
}

func TestServeSaysAMissingRightAtOnce(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte("k1:"+strings.Repeat("5a", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := cli(t, nil, "serve", "--postgres-url", pg.WriterURL, "--redis", "127.0.0.1:1", "--master-key-file", key, "--bucket", "orders=key",
		"--blobs", filepath.Join(dir, "blobs"), "--api-listen", "127.0.0.1:0", "--pg-listen", "127.0.0.1:0", "--s3-listen", "127.0.0.1:0")
	if code != exitForbidden || !strings.Contains(stderr, "make the bucket orders: ") || !strings.Contains(stderr, "42501") || !strings.Contains(stderr, "hint: use the login") || strings.Contains(stderr, "failed to start the gateway") {
		t.Errorf("%d %s", code, stderr)
	}
	runSQL(t, pg.URL, "REVOKE CONNECT ON DATABASE "+pgx.Identifier{pg.Database}.Sanitize()+" FROM PUBLIC")
	code, _, stderr = cli(t, map[string]string{"FENCEGATE_POSTGRES_URL": pg.WriterURL}, "fence", "ls")
	if code != exitForbidden || !strings.Contains(stderr, "permission denied for database") || !strings.Contains(stderr, "hint: use the login") {
		t.Errorf("no right to connect: %d %s", code, stderr)
	}
}

func TestTablesAreListedWithWhatTheyRefused(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	runSQL(t, pg.URL,
		"CREATE TABLE calm (id int)", "CREATE TABLE orders (id int)", "CREATE TABLE drafts (id int)", "GRANT ALL ON calm, orders, drafts TO fence_writer",
		"SELECT fence.protect('calm', under => 'calm/')", "SELECT fence.protect('orders', per_row => $$'orders/' || id$$)",
		"SELECT fence.protect('drafts', resource => 'drafts', mode => 'report')")
	conn, err := pgx.Connect(t.Context(), pg.WriterURL)
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{"INSERT INTO orders VALUES (1)", "DELETE FROM orders WHERE id = 1", "INSERT INTO orders VALUES (2)"} {
		if _, err := conn.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s is not refused", sql)
		}
	}
	if _, err := conn.Exec(t.Context(), "INSERT INTO drafts VALUES (1)"); err != nil {
		t.Error(err)
	}
	_ = conn.Close(t.Context())
	for login, url := range map[string]string{"gateway": pg.GatewayURL, "writer": pg.WriterURL, "owner": pg.URL} {
		vars := map[string]string{"FENCEGATE_POSTGRES_URL": url}
		var tables []protectedTable
		if err := json.Unmarshal([]byte(ok(t, vars, "fence", "tables", "--json")), &tables); err != nil || len(tables) != 3 {
			t.Fatalf("%s: %v %+v", login, err, tables)
		}
		most, next, calm := tables[0], tables[1], tables[2]
		if most.Table != "orders" || most.Refused == nil || *most.Refused != 3 || most.WouldRefuse != nil || most.Mode != "enforce" || !most.Complete || most.Needs != "'orders/' || id" {
			t.Errorf("%s: first %+v", login, most)
		}
		if next.Table != "drafts" || next.Refused != nil || next.WouldRefuse == nil || *next.WouldRefuse != 1 || next.Needs != "drafts" {
			t.Errorf("%s: second %+v", login, next)
		}
		if calm.Table != "calm" || calm.Refused == nil || *calm.Refused != 0 || calm.Needs != "calm/*" {
			t.Errorf("%s: third %+v", login, calm)
		}
		if out := ok(t, vars, "fence", "tables"); !strings.Contains(out, "REFUSED") || strings.Count(out, "\n") != 4 {
			t.Errorf("%s: %s", login, out)
		}
	}
}

func TestADatabaseWithoutProtectedTablesHasAnEmptyList(t *testing.T) {
	t.Parallel()
	if out := ok(t, map[string]string{"FENCEGATE_POSTGRES_URL": testenv.Postgres(t).GatewayURL}, "fence", "tables", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("%s; want []", out)
	}
}
