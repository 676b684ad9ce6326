//go:build unix

package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/internal/testenv"
)

// login opens a session through the PostgreSQL port with these startup options.
func (c *client) login(ctx context.Context, pg testenv.PG, options string) (*pgx.Conn, error) {
	c.t.Helper()
	cfg := c.portConfig(pg, options)
	cfg.RuntimeParams["application_name"] = "checkout"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err == nil {
		c.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(ctx)) })
	}
	return conn, err
}

var grantRequired = []pgwire.Rule{{User: "*", Database: "*", Policy: pgwire.PolicyGrantRequired}}

// guardedGateway starts a gateway in front of a guarded table.
func guardedGateway(t *testing.T, change func(*gateway.Config)) (*client, testenv.PG) {
	t.Helper()
	pg := testenv.Postgres(t)
	guarded(t, pg)
	cfg := config(t, pg)
	if change != nil {
		change(&cfg)
	}
	return start(t, cfg), pg
}

// locked returns whether a resource is held. It repeats the request until the nodes answer in time.
func (c *client) locked(resource string) (locked bool) {
	c.t.Helper()
	testenv.Eventually(c.t, "it is known whether "+resource+" is held", func() (known bool) {
		a := c.do("GET", "/v1/resources/"+resource, nil)
		locked, known = a.Body["locked"].(bool)
		return known || a.Status == http.StatusNotFound
	})
	return locked
}

func fatal(err error) *pgconn.PgError {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || refused.Severity != "FATAL" {
		return &pgconn.PgError{Message: fmt.Sprint(err)}
	}
	return refused
}

func TestBadRulesAreRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*gateway.Config){
		"dead policy": func(c *gateway.Config) {
			c.PG.Rules = []pgwire.Rule{{User: "*", Database: "*"}, {User: "app", Database: "*"}}
		},
		"another database":  func(c *gateway.Config) { c.PG.Rules = []pgwire.Rule{{User: "app", Database: "nowhere"}} },
		"no port":           func(c *gateway.Config) { c.PGListen, c.PG.Rules = "", grantRequired },
		"negative timeout":  func(c *gateway.Config) { c.PG.IdleTimeout = -1 },
		"negative per user": func(c *gateway.Config) { c.PG.MaxUserConnections = -1 },
	} {
		cfg := gateway.Config{PostgresURL: "postgres://a@127.0.0.1:1/shop", Leases: noLeases, MasterKey: masterKey, PGListen: "127.0.0.1:0"}
		change(&cfg)
		if g, err := gateway.New(cfg); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("%s: %v; want it refused", name, err)
			if g != nil {
				_ = g.Stop()
			}
		}
	}
}
