package gateway

import (
	"crypto/tls"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/pgwire"
)

// upstream derives where the PostgreSQL port relays to from the gateway's own
// address of the database.
func upstream(conn *pgx.ConnConfig, clients *tls.Config, cfg Config) pgwire.Config {
	c := pgwire.Config{
		Network: "tcp", Addr: net.JoinHostPort(conn.Host, strconv.Itoa(int(conn.Port))),
		Database: conn.Database, DrainTimeout: cfg.DrainTimeout, Logger: cfg.Logger,
		UpstreamTLS: insisted(conn), TLS: clients, MaxConnections: cfg.PGMaxConnections,
	}
	if strings.HasPrefix(conn.Host, "/") {
		c.Network, c.Addr = "unix", conn.Host+"/.s.PGSQL."+strconv.Itoa(int(conn.Port))
	}
	return c
}

// insisted is the TLS configuration where the address insists on TLS
// (sslmode=require and stricter). With a mode that also allows a plain
// connection (the default, prefer) the relay is plain: clients log in through
// it, and SCRAM with channel binding can't pass two different TLS connections.
func insisted(conn *pgx.ConnConfig) *tls.Config {
	for _, f := range conn.Fallbacks {
		if f.TLSConfig == nil && f.Host == conn.Host && f.Port == conn.Port {
			return nil
		}
	}
	return conn.TLSConfig
}

// endpoints tells a client that reached the API by host where the other ports are.
func (g *Gateway) endpoints(host string) api.Endpoints {
	addrs := g.Addrs()
	e := api.Endpoints{Version: g.cfg.Version}
	if addrs.PG != "" {
		at, port := g.reachable(addrs.PG, host)
		e.Postgres = &api.PostgresEndpoint{Host: at, Port: port, Database: g.parsed.pool.ConnConfig.Database}
	}
	if addrs.S3 != "" {
		at, port := g.reachable(addrs.S3, host)
		e.S3 = &api.S3Endpoint{URL: "http://" + net.JoinHostPort(at, strconv.Itoa(port)), Region: g.cfg.Region}
	}
	return e
}

func (g *Gateway) reachable(listens, host string) (string, int) {
	own, text, _ := net.SplitHostPort(listens) // a listener's own address
	port, _ := strconv.Atoi(text)
	switch addr, err := netip.ParseAddr(own); {
	case g.cfg.AdvertiseHost != "":
		return g.cfg.AdvertiseHost, port
	case err == nil && !addr.IsUnspecified():
		return own, port
	}
	return host, port
}
