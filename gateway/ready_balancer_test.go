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

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway"
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
	if said := log.String(); !strings.Contains(said, "the quarantine of the nodes ends in ") || strings.Contains(said, "Locker.Init") {
		t.Errorf("the log:\n%s", said)
	}
}

func TestClientsAreToldTheBalancersPorts(t *testing.T) {
	t.Parallel()
	cfg := config(t, testenv.Postgres(t))
	cfg.PGAdvertise, cfg.S3Advertise = "db.example.net:5432", "https://s3.example.net"
	c := start(t, cfg)
	e := c.want(http.StatusOK, "GET", "/v1/endpoints", nil).Body
	pg, s3 := e["pg"].(map[string]any), e["s3"].(map[string]any)
	if pg["host"] != "db.example.net" || pg["port"] != 5432.0 || s3["url"] != "https://s3.example.net" {
		t.Errorf("%v", e)
	}
	l := c.acquire("orders/1", "30s")
	if a := c.want(http.StatusOK, "POST", "/v1/leases/credentials", map[string]string{"handle": l.handle}); a.Body["endpoint_url"] != "https://s3.example.net" {
		t.Errorf("credentials for %v", a.Body["endpoint_url"])
	}
	refused := func(field, value string, set func(c *gateway.Config)) {
		t.Helper()
		wrong := cfg
		set(&wrong)
		_, err := gateway.New(wrong)
		if invalid, ok := errors.AsType[*fence.InvalidError](err); !ok || invalid.Field != field {
			t.Errorf("%s %q: %v", field, value, err)
		}
	}
	for _, value := range []string{"db.example.net", ":5432", "db.example.net:0", "db.example.net:65536", "db.example.net:pg"} {
		refused("PGAdvertise", value, func(c *gateway.Config) { c.PGAdvertise = value })
	}
	for _, value := range []string{"s3.example.net:7480", "ftp://s3.example.net", "https://", "https://me@s3.example.net", "https://s3.example.net/x"} {
		refused("S3Advertise", value, func(c *gateway.Config) { c.S3Advertise = value })
	}
}
