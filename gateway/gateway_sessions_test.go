//go:build unix

package gateway_test

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestOperatorsSeeAndEndSessions(t *testing.T) {
	t.Parallel()
	var log logbook
	c, pg := guardedGateway(t, func(cfg *gateway.Config) {
		cfg.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		cfg.PG.Rules = grantRequired
	})
	l := c.acquire("orders/1001", "1m")
	conn, err := c.login(t.Context(), pg, "-c fence.resource=orders/1001 -c fence.token="+l.grant)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.login(t.Context(), pg, ""); fatal(err).Code != "ZF002" {
		t.Errorf("without a grant: %v", err)
	}
	if _, err := conn.Exec(t.Context(), updateOrder, "held"); err != nil {
		t.Fatal(err)
	}
	var one map[string]any
	// The relay notes an answer once its client has received it.
	testenv.Eventually(t, "one session is listed, and idle", func() bool {
		all, _ := c.want(http.StatusOK, "GET", "/v1/sessions", nil).Body["sessions"].([]any)
		if len(all) == 1 {
			one, _ = all[0].(map[string]any)
		}
		return len(all) == 1 && one["state"] == "idle"
	})
	if pid := float64(conn.PgConn().PID()); one["pid"] != pid || one["application_name"] != "checkout" || one["statement_ms"] != nil {
		t.Errorf("%v; want the process %v of checkout", one, pid)
	}
	if one["resource"] != "orders/1001" || one["token"] != l.token {
		t.Errorf("%v", one)
	}
	series := c.scraped()
	for name, want := range map[string]string{
		`fencegate_pg_sessions{grant="yes"}`:            "1",
		`fencegate_pg_refusals_total{sqlstate="ZF002"}`: "1",
		`fencegate_pg_login_seconds_count`:              "1",
		`fencegate_pg_first_byte_seconds_count`:         "1",
	} {
		if series[name] != want {
			t.Errorf("%s is %q; want %q", name, series[name], want)
		}
	}
	for _, direction := range []string{"from_client", "to_client"} {
		if name := `fencegate_pg_bytes_total{direction="` + direction + `"}`; series[name] == "" || series[name] == "0" {
			t.Errorf("%s is %q", name, series[name])
		}
	}
	id, _ := one["id"].(string)
	c.want(http.StatusNoContent, "POST", "/v1/sessions/"+id+"/end", map[string]string{"by": "ops"})
	if _, err := conn.Exec(t.Context(), "SELECT 1"); fatal(err).Code != "57P01" {
		t.Errorf("%v; want FATAL 57P01", err)
	}
	testenv.Eventually(t, "it is not there any more", func() bool {
		all, _ := c.want(http.StatusOK, "GET", "/v1/sessions", nil).Body["sessions"].([]any)
		return len(all) == 0
	})
	c.want(http.StatusNotFound, "POST", "/v1/sessions/"+id+"/end", map[string]string{})
	testenv.Eventually(t, "its end is counted", func() bool { return c.scraped()[`fencegate_pg_ended_total{sqlstate="57P01"}`] == "1" })
	if _, seal, _ := strings.Cut(l.grant, "."); strings.Contains(log.String(), seal) || strings.Contains(log.String(), "UPDATE orders") {
		t.Error("the log shows a seal, or SQL")
	}
}

func TestOperatorsSeeHowLongAStatementRuns(t *testing.T) {
	t.Parallel()
	c, pg := guardedGateway(t, nil)
	running(t, c, pg, "SELECT pg_sleep(600)")
	testenv.Eventually(t, "its age is listed, and grows", func() bool {
		all, _ := c.want(http.StatusOK, "GET", "/v1/sessions", nil).Body["sessions"].([]any)
		one, _ := all[0].(map[string]any)
		age, _ := one["statement_ms"].(float64)
		return len(all) == 1 && one["state"] == "active" && age > 100
	})
}
