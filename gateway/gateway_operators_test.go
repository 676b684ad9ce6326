//go:build unix

package gateway_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/certs"
	"github.com/fencegate/fencegate/internal/testenv"
)

// logbook collects a log that several goroutines write.
type logbook struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// warnings returns the log lines that need an operator's action.
func (l *logbook) warnings() (lines []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			lines = append(lines, line)
		}
	}
	return lines
}

func TestRenewalLearnsOfARevocation(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	guarded(t, pg)
	c := start(t, config(t, pg))
	l := c.acquire("orders/1001", "30s")
	conn := c.connect(pg, l)
	revoked := c.want(http.StatusOK, "POST", "/v1/resources/orders/1001/revoke", map[string]string{"holder": "ops"})
	if revoked.text("token") <= l.token || revoked.text("resource") != "orders/1001" {
		t.Errorf("revoked: %v after token %s", revoked.Body, l.token)
	}
	if _, err := conn.Exec(t.Context(), updateOrder, "after revocation"); sqlState(err) != "ZF001" {
		t.Errorf("write of the revoked holder: %v", err)
	}
	if a := c.want(http.StatusGone, "POST", "/v1/leases/renew", map[string]string{"handle": l.handle}); a.text("code") != "lease_lost" {
		t.Errorf("renewal: %v", a.Body)
	}
	// The failed renewal has released the lock.
	next := c.acquire("orders/1001", "30s")
	if _, err := c.connect(pg, next).Exec(t.Context(), updateOrder, "next"); err != nil {
		t.Errorf("write of the next holder: %v", err)
	}
	c.want(http.StatusNotFound, "POST", "/v1/resources/never/revoke", map[string]string{})
	a := c.want(http.StatusOK, "GET", "/v1/resources?prefix=orders/", nil)
	if list, _ := a.Body["resources"].([]any); len(list) != 1 || list[0].(map[string]any)["token"] != next.token || a.Body["next"] != nil {
		t.Errorf("list: %v, want token %s", a.Body, next.token)
	}
}

func TestLocksOfASupersededSessionAreLetGo(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	guarded(t, pg)
	cfg := config(t, pg)
	here := start(t, cfg)
	cfg.BlobDir = t.TempDir()
	there := start(t, cfg) // another gateway of the group
	for name, c := range map[string]*client{"on the gateway that arms": here, "on another gateway": there} {
		old := here.acquire("orders/1001", "30s")
		conn := c.connect(pg, old)
		// No fence check: it writes nothing.
		if _, err := conn.Exec(t.Context(), "BEGIN; SELECT * FROM orders FOR UPDATE"); err != nil {
			t.Fatal(err)
		}
		here.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": old.handle})
		next := here.acquire("orders/1001", "30s")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if _, err := here.connect(pg, next).Exec(ctx, updateOrder, "next"); err != nil {
			t.Errorf("%s: the next holder waits for the lock of the one before: %v", name, err)
		}
		cancel()
		if _, err := conn.Exec(t.Context(), "COMMIT"); sqlState(err) != "ZF001" {
			t.Errorf("%s: the superseded session: %v", name, err)
		}
		here.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": next.handle})
	}
}

func TestNoCredentialsAfterRelease(t *testing.T) {
	t.Parallel()
	c := start(t, config(t, testenv.Postgres(t)))
	l := c.acquire("orders/1", "30s")
	c.want(http.StatusOK, "POST", "/v1/leases/credentials", map[string]string{"handle": l.handle})
	c.want(http.StatusNoContent, "POST", "/v1/leases/release", map[string]string{"handle": l.handle})
	c.want(http.StatusGone, "POST", "/v1/leases/credentials", map[string]string{"handle": l.handle})
}

func TestStartSaysInOneWarningWhatIsMissing(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	away := "postgres://u:hunter2@" + closedPort(t) + "/d"
	for name, c := range map[string]struct {
		postgres, sql string
		says          []string // one in each warning
	}{
		"PostgreSQL away":   {away + "?sslmode=disable", pg.WriterURL, []string{"gateway login: "}},
		"both away":         {away + "?sslmode=disable", away, []string{"SQL login: "}},
		"no role":           {pg.OtherURL, "", []string{"GRANT fence_gateway TO \\\"fencegate_test_other\\\""}},
		"too much for SQL":  {pg.GatewayURL, pg.URL, []string{"may do more"}},
		"all there":         {pg.GatewayURL, pg.WriterURL, nil},
		"TLS on half a way": {away + "?sslmode=require", "", []string{"gateway login: ", "SCRAM-SHA-256-PLUS"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log logbook
			cfg := alone(config(t, pg)) // a step that takes too long is warned of, too, and nodes have a second
			cfg.PostgresURL, cfg.SQLURL, cfg.Buckets = c.postgres, c.sql, nil
			cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
			start(t, cfg)
			warnings := log.warnings()
			if strings.Contains(fmt.Sprint(warnings), "hunter2") {
				t.Errorf("%q", warnings)
			}
			if len(warnings) != len(c.says) {
				t.Fatalf("%q, want %q", warnings, c.says)
			}
			for i, says := range c.says {
				if !strings.Contains(warnings[i], says) {
					t.Errorf("%q, want %q", warnings[i], says)
				}
			}
		})
	}
}

func TestStartLeavesTheRuleOfABucketThatIsThere(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	cfg := config(t, pg)
	start(t, cfg).want(http.StatusOK, "PUT", "/v1/buckets/orders", map[string]string{"rule": "key"})
	var log logbook
	again := cfg
	again.Logger = slog.New(slog.NewTextHandler(&log, nil))
	start(t, again)
	var depth int
	if err := pg.Pool(t).QueryRow(t.Context(), "SELECT depth FROM objects.buckets WHERE name = 'orders'").Scan(&depth); err != nil || depth != -1 {
		t.Errorf("depth %d, %v; want -1, the rule that the operator gave", depth, err)
	}
	if w := log.warnings(); len(w) != 1 || !strings.Contains(w[0], "bucket=orders rule=key configured=prefix:1") {
		t.Errorf("warnings: %q", w)
	}
}

func TestBlobsAreSweptWhileTheGatewayServes(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	cfg := config(t, pg)
	cfg.SweepEvery = 20 * time.Millisecond
	start(t, cfg)
	pool := pg.Pool(t)
	if _, err := pool.Exec(t.Context(), "INSERT INTO objects.blobs (id, changed_at) VALUES (gen_random_uuid(), now() - interval '48 hours')"); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the upload that was given up is swept", func() bool {
		var swept bool
		err := pool.QueryRow(t.Context(), "SELECT state = 'condemned' AND swept_at IS NOT NULL FROM objects.blobs").Scan(&swept)
		return err == nil && swept
	})
}

// Another gateway with a shorter setting may sweep before this one does.
func TestTheGraceOfTheSweepIsRecordedAtTheStart(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	pool := pg.Pool(t)
	for _, c := range []struct {
		grace time.Duration
		want  string
	}{{0, "24:00:00"}, {48 * time.Hour, "48:00:00"}} {
		cfg := config(t, pg)
		cfg.SweepGrace = c.grace
		start(t, cfg)
		testenv.Eventually(t, "the grace is recorded", func() bool {
			var recorded string
			err := pool.QueryRow(t.Context(), "SELECT coalesce(objects.sweep_grace()::text, '')").Scan(&recorded)
			return err == nil && recorded == c.want
		})
	}
}

func TestAScanOfTheBlobsThatFailsIsNotRepeatedByEachSweep(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	pool := pg.Pool(t)
	for _, sql := range []string{
		"CREATE SEQUENCE public.scans",
		"CREATE SEQUENCE public.sweeps",
		`CREATE OR REPLACE FUNCTION objects.adopt(p_blobs uuid[], p_dry boolean, OUT adopted integer, OUT named integer) LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  PERFORM nextval('public.scans');
  RAISE EXCEPTION 'too many versions';
END $$`,
		`CREATE OR REPLACE FUNCTION objects.forget_deletions(p_age interval, p_limit integer, p_dry boolean) RETURNS integer LANGUAGE sql SECURITY DEFINER AS $$
SELECT 0 * nextval('public.sweeps')::integer $$`,
		"GRANT USAGE ON public.scans, public.sweeps TO PUBLIC",
	} {
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	cfg := config(t, pg)
	cfg.SweepEvery = 20 * time.Millisecond
	start(t, cfg)
	var scans, sweeps int
	testenv.Eventually(t, "there were five sweeps", func() bool {
		err := pool.QueryRow(t.Context(), "SELECT a.last_value, b.last_value FROM public.scans a, public.sweeps b").Scan(&scans, &sweeps)
		return err == nil && sweeps >= 5
	})
	if scans != 1 {
		t.Errorf("%d sweeps scanned the blobs %d times, want once", sweeps, scans)
	}
}

func TestPostgreSQLPortOffersTLSFromFiles(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	cfg := config(t, pg)
	own := certs.New(certs.For("127.0.0.1"))
	cfg.PGTLSCert, cfg.PGTLSKey = own.Files(t)
	c := start(t, cfg)
	login, err := pgx.ParseConfig(pg.WriterURL)
	if err != nil {
		t.Fatal(err)
	}
	client, err := pgx.ParseConfig(fmt.Sprintf("postgres://%s/%s?sslmode=require", c.g.Addrs().PG, pg.Database))
	if err != nil {
		t.Fatal(err)
	}
	client.User, client.Password = login.User, login.Password
	client.TLSConfig = &tls.Config{RootCAs: own.Pool(), ServerName: "127.0.0.1"}
	conn, err := pgx.ConnectConfig(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, encrypted := conn.PgConn().Conn().(*tls.Conn); !encrypted {
		t.Error("the session is not encrypted")
	}
}
