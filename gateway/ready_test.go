package gateway_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/testenv"
)

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
