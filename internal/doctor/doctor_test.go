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
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/goleak"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testenv.Wrap(m), testenv.LeakOptions()...) }

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

// want finds the gravest finding of a check and compares.
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
	return Examine(t.Context(), Config{PostgresURL: url})
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
			// The tests' server runs without fsync, and a gateway needs a login of its own.
			expected := f.Check == "postgresql.durability" || f.Check == "postgresql.timeouts" || f.Check == "postgresql.login" ||
				f.Check == "postgresql.prepared-transactions" || f.Check == "postgresql.standbys"
			if f.Status != OK && !expected {
				t.Errorf("as %s: %+v", login, f)
			}
		}
		want(t, findings, "postgresql.durability", Fail, "fsync")
	}
	want(t, examine(t, pg.GatewayURL), "postgresql.login", OK)
	want(t, examine(t, pg.WriterURL), "postgresql.login", Warn, "fence_gateway")
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
		"nothing protected":         {check: "postgresql.guards", status: Warn, words: []string{"protect"}},
		"guard disabled":            {before: []string{`SELECT fence.protect('orders', under => 'orders/')`, `ALTER TABLE orders DISABLE TRIGGER fence_guard`}, check: "postgresql.guards", status: Fail, words: []string{"orders", "disabled"}},
		"guard dropped":             {before: []string{`SELECT fence.protect('orders', under => 'orders/')`, `DROP TRIGGER fence_guard ON orders`}, check: "postgresql.guards", status: Fail, words: []string{"orders", "dropped"}},
		"report mode":               {before: []string{`SELECT fence.protect('orders', under => 'orders/', mode => 'report')`}, check: "postgresql.guards", status: Warn, words: []string{"orders", "enforce"}},
		"unsealed":                  {before: []string{`INSERT INTO fence.unsealed VALUES ('x/*')`}, check: "postgresql.unsealed", status: Warn},
		"no event triggers":         {check: "postgresql.event-triggers", status: Warn, words: []string{"events install"}},
		"event trigger disabled":    {before: []string{`SELECT fence.install_event_triggers()`, `ALTER EVENT TRIGGER fence_keep DISABLE`}, check: "postgresql.event-triggers", status: Fail, words: []string{"fence_keep"}},
		"no idle timeout":           {option: "idle_in_transaction_session_timeout=0", check: "postgresql.timeouts", status: Warn},
		"idle timeout":              {option: "idle_in_transaction_session_timeout=60s", check: "postgresql.timeouts", status: OK},
		"short statement timeout":   {option: "statement_timeout=200ms", check: "postgresql.statement-timeout", status: Warn},
		"short lock timeout":        {option: "lock_timeout=20ms", check: "postgresql.lock-timeout", status: Warn},
		"isolation":                 {option: "default_transaction_isolation=serializable", check: "postgresql.isolation", status: Fail},
		"read only":                 {option: "default_transaction_read_only=on", check: "postgresql.primary", status: Fail},
		"asynchronous commit":       {option: "synchronous_commit=off", check: "postgresql.synchronous-commit", status: Warn},
		"prepared transaction":      {before: []string{`BEGIN; INSERT INTO orders VALUES (1); PREPARE TRANSACTION 'doctor-NAME'`}, check: "postgresql.prepared-transactions", status: Warn, words: []string{"doctor-"}},
		"fences writable":           {before: []string{`GRANT UPDATE ON fence.resources TO fence_writer`}, check: "postgresql.privileges", status: Fail, words: []string{"fence_writer", "REVOKE UPDATE ON fence.resources"}},
		"everybody raises":          {before: []string{`GRANT EXECUTE ON FUNCTION fence.raise TO PUBLIC`}, check: "postgresql.privileges", status: Fail, words: []string{"everybody", "fence.raise"}},
		"gateway can't arm":         {before: []string{`REVOKE EXECUTE ON FUNCTION fence.raise FROM fence_gateway`}, check: "postgresql.privileges", status: Fail, words: []string{"GRANT EXECUTE ON FUNCTION fence.raise"}},
		"writer can't use":          {before: []string{`REVOKE EXECUTE ON FUNCTION fence.use(text, text) FROM fence_writer`}, check: "postgresql.privileges", status: Fail, words: []string{"fence_writer may not call"}},
		"foreign owner":             {before: []string{`ALTER TABLE fence.resources OWNER TO fencegate_test_other`}, check: "postgresql.privileges", status: Fail, words: []string{"belongs to fencegate_test_other"}},
		"no replica identity":       {before: []string{`CREATE TABLE bare (v int)`, `SELECT fence.protect('bare', under => 'x/')`, `CREATE PUBLICATION p FOR TABLE bare`}, check: "postgresql.replica-identity", status: Warn, words: []string{"bare", "REPLICA IDENTITY"}},
		"older schema":              {before: []string{`UPDATE fencegate.migrations SET version = 12`}, check: "postgresql.schema", status: Fail, words: []string{"migrate up"}},
		"newer schema":              {before: []string{`UPDATE fencegate.migrations SET version = 999999`}, check: "postgresql.schema", status: Fail, words: []string{"newer"}},
		"interrupted schema":        {before: []string{`UPDATE fencegate.migrations SET dirty = true`}, check: "postgresql.schema", status: Fail, words: []string{"interrupted"}},
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

// transactionPooler lends one of the server's sessions to each client for one
// transaction, as PgBouncer does in its transaction mode. Queries come as pgx
// sends them: a batch up to Sync, or one simple query.
func transactionPooler(t *testing.T, url string, size int) string {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	servers := make(chan *pgproto3.Frontend, size)
	for range size {
		conn, err := pgx.ConnectConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := conn.PgConn().Hijack()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = raw.Conn.Close() })
		servers <- raw.Frontend
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = client.Close() }()
				lend(client, servers)
			}()
		}
	}()
	return fmt.Sprintf("postgres://pooled@%s/%s?sslmode=disable", ln.Addr(), config.Database)
}

func lend(client net.Conn, servers chan *pgproto3.Frontend) {
	back := pgproto3.NewBackend(client, client)
	if _, err := back.ReceiveStartupMessage(); err != nil {
		return
	}
	back.Send(&pgproto3.AuthenticationOk{})
	back.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	back.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	back.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{0, 0, 0, 1}})
	back.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	var server *pgproto3.Frontend
	defer func() {
		if server != nil {
			servers <- server
		}
	}()
	for back.Flush() == nil {
		asked := false
		for !asked {
			msg, err := back.Receive()
			if err != nil {
				return
			}
			if server == nil {
				server = <-servers
			}
			switch msg.(type) {
			case *pgproto3.Terminate:
				return
			case *pgproto3.Query, *pgproto3.Sync:
				asked = true
			}
			server.Send(msg)
		}
		if server.Flush() != nil {
			return
		}
		for done := false; !done; {
			msg, err := server.Receive()
			if err != nil {
				return
			}
			back.Send(msg)
			if ready, ok := msg.(*pgproto3.ReadyForQuery); ok {
				done = true
				if ready.TxStatus == 'I' {
					servers <- server
					server = nil
				}
			}
		}
	}
}

func TestAPoolerInTransactionModeIsFound(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	want(t, examine(t, pg.URL), "postgresql.pooler", OK)
	for _, size := range []int{1, 2, 5} {
		want(t, examine(t, transactionPooler(t, pg.URL, size)), "postgresql.pooler", Fail, "transaction mode")
	}
}

func nodes(addrs ...string) []lock.Node {
	list := make([]lock.Node, len(addrs))
	for i, addr := range addrs {
		list[i].Addr = addr
	}
	return list
}

func TestRedisNodesAreExamined(t *testing.T) {
	t.Parallel()
	sound := testenv.OwnRedisWith(t, 3, redisserver.Config{AppendOnly: redisserver.Always})
	addrs := []string{sound[0].Addr, sound[1].Addr, sound[2].Addr}
	examine := func(list ...string) []Finding { return Examine(t.Context(), Config{RedisNodes: nodes(list...)}) }
	findings := examine(addrs...)
	want(t, findings, "redis.admitted", Warn, "--init")
	want(t, findings, "redis.quorum", Fail)

	locker, err := lock.New(lock.Config{Nodes: nodes(addrs...)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	if err := locker.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	findings = examine(addrs...)
	if Worst(findings) != OK {
		t.Errorf("sound nodes: %+v", findings)
	}
	findings = examine(addrs[0], strings.Replace(addrs[0], "127.0.0.1", "localhost", 1), addrs[1])
	want(t, findings, "redis.independent", Fail, addrs[0])
	want(t, examine(addrs[:2]...), "redis.nodes", Warn)

	if err := sound[2].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	findings = examine(addrs...)
	want(t, findings, "redis.admitted", Warn, addrs[2])
	want(t, findings, "redis.quorum", OK)
	if err := sound[2].Kill(); err != nil {
		t.Fatal(err)
	}
	findings = examine(addrs...)
	want(t, findings, "redis.reachable", Fail, addrs[2])
	want(t, findings, "redis.quorum", OK)
}

func TestEachFaultOfARedisNodeIsFound(t *testing.T) {
	t.Parallel()
	plain := testenv.OwnRedis(t, 1)[0]
	for name, broken := range map[string]struct {
		cfg    redisserver.Config
		check  string
		status Status
	}{
		"no persistence":      {check: "redis.persistence", status: Warn},
		"every second":        {cfg: redisserver.Config{AppendOnly: redisserver.EverySec}, check: "redis.persistence", status: Warn},
		"would evict":         {cfg: redisserver.Config{Args: []string{"--maxmemory-policy", "allkeys-lru"}}, check: "redis.eviction", status: Warn},
		"evicts":              {cfg: redisserver.Config{Args: []string{"--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb"}}, check: "redis.eviction", status: Fail},
		"replica":             {cfg: redisserver.Config{Args: []string{"--replicaof", strings.Replace(plain.Addr, ":", " ", 1)}}, check: "redis.replica", status: Fail},
		"cluster":             {cfg: redisserver.Config{Args: []string{"--cluster-enabled", "yes"}}, check: "redis.cluster", status: Fail},
		"configuration hid":   {cfg: redisserver.Config{Args: []string{"--rename-command", "CONFIG", "hidden"}}, check: "redis.eviction", status: Warn},
		"password is missing": {cfg: redisserver.Config{}, check: "redis.reachable", status: Fail},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var addr string
			if name == "replica" {
				host, port, _ := net.SplitHostPort(plain.Addr)
				broken.cfg.Args = []string{"--replicaof", host + " " + port}
			}
			if name == "password is missing" {
				addr = demandsPassword(t)
			} else {
				addr = testenv.OwnRedisWith(t, 1, broken.cfg)[0].Addr
			}
			want(t, Examine(t.Context(), Config{RedisNodes: nodes(addr)}), broken.check, broken.status)
		})
	}
}

// demandsPassword answers as a node does whose password was not given.
func demandsPassword(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				for buf := make([]byte, 4096); ; {
					if _, err := conn.Read(buf); err != nil {
						return
					}
					_, _ = conn.Write([]byte("-NOAUTH Authentication required.\r\n"))
				}
			}()
		}
	}()
	return ln.Addr().String()
}

func TestAGatewayAndABlobFolderAreExamined(t *testing.T) {
	t.Parallel()
	status := http.StatusOK
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(`{"detail": "PostgreSQL may have forgotten fences", "path": "` + r.URL.Path + `"}`))
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
