//go:build unix

package gateway_test

import (
	"errors"
	"net/http"
	"testing"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/testenv"
)

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
