//go:build unix

package gateway_test

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// Each port has its own readiness check, so an outage of Redis affects only leases.
func TestWithoutRedisOnlyLeasesAreNotReady(t *testing.T) {
	t.Parallel()
	cfg := config(t, testenv.Postgres(t))
	nodes := testenv.OwnRedis(t, 1)
	cfg.RedisNodes = []lock.Node{{Addr: nodes[0].Addr}}
	c := start(t, cfg)
	for surface, status := range map[string]int{"lease": 200, "pg": 200, "sql": 200, "s3": 200} {
		testenv.Eventually(t, surface+" is ready", func() bool { return c.do("GET", "/readyz?for="+surface, nil).Status == status })
	}
	if err := nodes[0].Kill(); err != nil {
		t.Fatal(err)
	}
	for surface, status := range map[string]int{"lease": 503, "pg": 200, "sql": 200, "s3": 200} {
		testenv.Eventually(t, fmt.Sprintf("/readyz?for=%s answers %d", surface, status), func() error { // a check may take too long
			a := c.do("GET", "/readyz?for="+surface, nil)
			if strings.Contains(a.text("detail"), nodes[0].Addr) {
				t.Fatalf("/readyz?for=%s names a node: %v", surface, a.Body)
			}
			if a.Status != status {
				return fmt.Errorf("%d %v; want %d", a.Status, a.Body, status)
			}
			return nil
		})
	}
}

func TestAQuarantineSaysHowLongItLasts(t *testing.T) {
	t.Parallel()
	cfg := config(t, testenv.Postgres(t))
	nodes := testenv.OwnRedisWith(t, 1, redisserver.Config{AppendOnly: redisserver.Always})
	log := &logbook{}
	cfg.RedisNodes, cfg.MaxTTL, cfg.Logger = []lock.Node{{Addr: nodes[0].Addr}}, 50*time.Second, slog.New(slog.NewTextHandler(log, nil))
	c := start(t, cfg)
	c.acquire("r", "50s")
	if err := errors.Join(nodes[0].Kill(), nodes[0].Restart(t.Context())); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "a lease is refused with the quarantine's time", func() bool {
		a := c.do("POST", "/v1/leases", map[string]string{"resource": "other"})
		ms, _ := a.Body["retry_after_ms"].(float64)
		return a.Status == http.StatusServiceUnavailable && strings.Contains(a.text("detail"), "quarantine, ") && ms > 1000 && ms <= 60_000
	})
	untilAnswered(c, func(a answer) bool {
		return a.Status == http.StatusServiceUnavailable && strings.Contains(a.text("detail"), " s left")
	})
	if said := log.String(); !strings.Contains(said, "the quarantine of the nodes ends in ") || strings.Contains(said, "Admin.Init") {
		t.Errorf("the log:\n%s", said)
	}
}

// A principal with the right sql can change the password of the SQL login. That must affect no other port.
func TestALoginOfSQLThatFailsIsTroubleOfSQLAlone(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	cfg := config(t, pg)
	cfg.SQLURL = pg.As(t, "fence_writer")
	login, err := pgx.ParseConfig(cfg.SQLURL)
	if err != nil {
		t.Fatal(err)
	}
	c := start(t, cfg)
	l := c.acquire("orders/1", "50s")
	run := func(status int, sql string) answer {
		t.Helper()
		return c.want(status, "POST", "/v1/sql", map[string]any{"statements": []any{map[string]any{"sql": sql}}},
			"Fencing-Resource", l.resource, "Fencing-Token", l.grant)
	}
	run(http.StatusOK, "DO $$ BEGIN EXECUTE format('ALTER ROLE CURRENT_USER PASSWORD %L', 'another'); END $$")
	end := "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1"
	if _, err := pg.Pool(t).Exec(t.Context(), end, login.User); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "/readyz tells of the login", func() bool {
		status, text := c.text("GET", "/readyz", nil)
		if status != http.StatusOK {
			t.Logf("/readyz: %d %s", status, text) // a check took too long
		}
		return status == http.StatusOK && strings.Contains(text, `"degraded":{"postgresql":"/v1/sql can't serve`)
	})
	if a := run(http.StatusServiceUnavailable, "SELECT 1"); strings.Contains(a.text("detail"), "password") {
		t.Errorf("it says too much: %v", a.Body)
	}
	c.acquire("orders/2", "10s")
	testenv.Eventually(t, "only SQL is not ready", func() error { // a check may take too long for one scrape
		series := c.scraped()
		for surface, want := range map[string]string{"lease": "1", "pg": "1", "s3": "1", "sql": "0"} {
			if got := series[`fencegate_ready{surface="`+surface+`"}`]; got != want {
				return fmt.Errorf("%s: %q; want %q", surface, got, want)
			}
		}
		return nil
	})
}
