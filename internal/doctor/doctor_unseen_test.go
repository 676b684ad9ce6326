//go:build unix

package doctor

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
	"github.com/fencegate/fencegate/migrate"
)

// Monitoring uses the exit code, which is 1 for a FAIL: a server that does not answer must not pass.
func TestADatabaseThatStopsAnsweringFails(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	exec(t, pg.URL, table, `SELECT fence.protect('orders', under => 'orders/')`)
	conn, err := pgx.Connect(t.Context(), pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	for _, sql := range []string{`BEGIN`, `LOCK TABLE fencegate.fence_state IN ACCESS EXCLUSIVE MODE`} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	patience, over := context.WithCancel(t.Context())
	defer over()
	var findings []Finding
	var examined sync.WaitGroup
	examined.Go(func() { findings = examinePostgres(patience, pg.URL) })
	await(t, connect(t, pg.URL), "doctor waits for the table", `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
		WHERE d.datname = current_database() AND l.relation = 'fencegate.fence_state'::regclass AND NOT l.granted)`)
	over()
	examined.Wait()
	want(t, findings, "postgresql.schema", Fail, "could not be checked", "--patience")
}

func TestASchemaThatSomebodyRemovedAPartOfFails(t *testing.T) {
	t.Parallel()
	for sql, check := range map[string]string{
		`DROP SCHEMA fence CASCADE`:            "postgresql.schema",
		`DROP VIEW fence.uncovered CASCADE`:    "postgresql.guards",
		`DROP SCHEMA fence, fencegate CASCADE`: "postgresql.schema",
	} {
		pg := testenv.Postgres(t)
		exec(t, pg.URL, sql)
		want(t, examine(t, pg.URL), check, Fail, "migrate up")
	}
}

// The gateway's login may not read the table of the patterns.
func TestUnsealedPatternsAreFoundFromEachLoginThatMaySeeThem(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	exec(t, pg.URL, `SELECT fence.allow_unsealed('x/*')`)
	want(t, examine(t, pg.GatewayURL), "postgresql.unsealed", Warn, "1 pattern(s) in fence.unsealed")
	want(t, examine(t, pg.WriterURL), "postgresql.unsealed", Warn, "could not be checked", "as a login that may see it")
}

func TestOfSeveralHostsTheOneThatAnsweredIsNamed(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	config, err := pgx.ParseConfig(pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	at := net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
	findings := examine(t, strings.Replace(pg.URL, at, testenv.DeadAddr(t)+","+at, 1))
	want(t, findings, "postgresql.reachable", OK, at)
}

func TestWaysToWriteFencesBesideAGrantOnThemAreFound(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	for sql, words := range map[string][]string{
		`GRANT UPDATE (token) ON fence.resources TO fencegate_test_other`: {"fencegate_test_other may UPDATE fence.resources (token)", "REVOKE UPDATE (token)"},
		`GRANT CREATE ON SCHEMA fence TO fence_writer`:                    {"fence_writer may make functions in the schema fence", "REVOKE CREATE ON SCHEMA fence FROM fence_writer"},
		`GRANT CREATE ON SCHEMA objects TO PUBLIC`:                        {"everybody may make functions in the schema objects", "FROM PUBLIC"},
		`GRANT UPDATE ON objects.pointers TO fence_writer`:                {"fence_writer may UPDATE objects.pointers", "REVOKE UPDATE"},
	} {
		want(t, examine(t, pg.URL), "postgresql.privileges", OK)
		exec(t, pg.URL, sql)
		want(t, examine(t, pg.URL), "postgresql.privileges", Fail, words...)
		exec(t, pg.URL, strings.Replace(strings.Replace(sql, "GRANT", "REVOKE", 1), " TO ", " FROM ", 1))
	}
}

func TestAnEventTriggerThatIsCalledForSomeCommandsOnlyIsMissing(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	exec(t, pg.URL, `SELECT fence.install_event_triggers()`, `DROP EVENT TRIGGER fence_keep`,
		`CREATE EVENT TRIGGER fence_keep ON ddl_command_end WHEN TAG IN ('CREATE VIEW') EXECUTE FUNCTION fence_events.keep()`, `ALTER EVENT TRIGGER fence_keep ENABLE ALWAYS`)
	want(t, examine(t, pg.URL), "postgresql.event-triggers", Fail, "missing", "fence_events.keep", "events install")
}

func TestTheRemedyFitsWhyATableHasNoGuard(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	exec(t, pg.URL, `CREATE SCHEMA app`, `SELECT fence.protect_schema('app', under => 'app/')`, `CREATE TABLE app.late (id int)`)
	want(t, examine(t, pg.URL), "postgresql.guards", Fail, "app.late", "protect SCHEMA --schema")
	exec(t, pg.URL, `DROP TABLE app.late`, `CREATE FOREIGN DATA WRAPPER nowhere`, `CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere`, `CREATE FOREIGN TABLE app.far (id int) SERVER nowhere`)
	want(t, examine(t, pg.URL), "postgresql.guards", Fail, "app.far", "on the server that has its data")
}

func TestSuperusersAndOwnersThatWriteAreNamed(t *testing.T) {
	t.Parallel()
	server := startServer(t, "")
	url := server.URL("postgres")
	if err := migrate.Up(t.Context(), url, migrate.All); err != nil {
		t.Fatal(err)
	}
	want(t, examine(t, url), "postgresql.writers", OK)
	for _, c := range []struct {
		do, undo, check string
		status          Status
		words           []string
	}{
		{`CREATE ROLE app SUPERUSER LOGIN IN ROLE fence_writer`, `DROP ROLE app`, "postgresql.writers", Warn, []string{"app is a superuser", "NOSUPERUSER"}},
		{`CREATE ROLE team IN ROLE fence_gateway; CREATE ROLE app LOGIN IN ROLE team, fence_owner`, `DROP ROLE app, team`, "postgresql.writers", Warn, []string{"app writes or arms and is in fence_owner"}},
		{`CREATE ROLE app LOGIN IN ROLE pg_write_all_data`, `DROP ROLE app`, "postgresql.privileges", Fail, []string{"app is in pg_write_all_data", "REVOKE pg_write_all_data FROM app"}},
	} {
		exec(t, url, c.do)
		want(t, examine(t, url), c.check, c.status, c.words...)
		exec(t, url, c.undo)
		want(t, examine(t, url), c.check, OK)
	}
}

// A primary with Sentinels that accepts writes without a replica is a warning, and counts for the quorum.
func TestANodeThatIsWarnedOfCountsForTheQuorum(t *testing.T) {
	t.Parallel()
	server := testenv.OwnRedisWith(t, 1, redisserver.Config{AppendOnly: redisserver.Always})[0]
	watched := []lock.Node{{Name: "watched", MasterName: "main", Sentinels: []string{namesPrimary(t, server.Addr)}}}
	locker, err := lock.New(lock.Config{Nodes: watched, NodeTimeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	testenv.Eventually(t, "the nodes are admitted", func() error { return admin.Of(locker).Init(t.Context()) }) // a node may answer too late
	findings := patiently(t, Config{RedisNodes: watched, KeyPrefix: lock.DefaultKeyPrefix})
	want(t, findings, "redis.admitted", Warn, "min-replicas-to-write")
	want(t, findings, "redis.quorum", OK, "1 of 1")
}

// namesPrimary answers every question like a Sentinel that knows one primary.
func namesPrimary(t *testing.T, primary string) (addr string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	host, port, _ := net.SplitHostPort(primary)
	answer := fmt.Sprintf("*2\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(host), host, len(port), port)
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					if lines.Text() == "main" { // the question's last word
						_, _ = conn.Write([]byte(answer))
					}
				}
			}()
		}
	}()
	return ln.Addr().String()
}

func TestWhoAnswersWithoutBeingAGatewayIsNoneThatIsReady(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"<html>sign in</html>", "", "{}", `{"status": 200}`, `{"status": "sleeping"}`} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
		want(t, Examine(t.Context(), Config{GatewayURL: srv.URL}), "gateway.ready", Fail, "not as a gateway does")
		srv.Close()
	}
}

func TestABlobStoreThatIsNotTheDatabasesIsFound(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	look := func(dir string) []Finding {
		return Examine(t.Context(), Config{PostgresURL: pg.GatewayURL, BlobDir: dir})
	}
	fresh := t.TempDir()
	want(t, look(fresh), "blobs.owner", OK)
	if left, _ := os.ReadDir(fresh); len(left) > 0 {
		t.Errorf("doctor left %v", left)
	}
	strange := t.TempDir()
	store, err := blob.OpenDir(strange)
	if err != nil {
		t.Fatal(err)
	}
	if err := store.SetOwner(t.Context(), "another database"); err != nil {
		t.Fatal(err)
	}
	want(t, look(strange), "blobs.owner", Fail, "belongs to another database", "objects claim")
	exec(t, pg.URL, `INSERT INTO objects.blobs (id, state) VALUES (gen_random_uuid(), 'live')`)
	want(t, look(fresh), "blobs.owner", Fail, "the database lists blobs", "Mount the disk")
}

func TestACertificateThatIsNotTrustedIsNoGatewayThatIsAway(t *testing.T) {
	t.Parallel()
	srv := httptest.NewUnstartedServer(nil)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	findings := Examine(t.Context(), Config{GatewayURL: srv.URL})
	want(t, findings, "gateway.reachable", Fail, "x509", "Renew the gateway's certificate")
}
