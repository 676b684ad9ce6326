package gateway

import (
	"crypto/tls"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/gateway/pgwire"
)

// relayed derives the upstream of the PostgreSQL port from the gateway's own database address: the host that servers
// chooses.
func relayed(s *servers, clients *tls.Config, cfg Config) pgwire.Config {
	first := s.hosts[0]
	return pgwire.Config{
		Options: cfg.PG,
		Network: first.Network, Addr: first.Addr, UpstreamTLS: first.TLS, UpstreamDirectTLS: first.DirectTLS, Fallbacks: s.hosts[1:],
		Suitable: s.suitable, Database: s.config.Database, DrainTimeout: cfg.DrainTimeout, Logger: cfg.Logger, TLS: clients,
	}
}

// upstreams returns one upstream per host. It is plain where the address also allows a plain connection (sslmode
// prefer, the default, and allow): clients log in through it, and SCRAM with channel binding fails across two different
// TLS connections.
func upstreams(conn *pgconn.Config) []pgwire.Upstream {
	var ways []pgwire.Upstream
	for i, f := range waysOf(conn) {
		network, addr := pgconn.NetworkAddress(f.Host, f.Port)
		way := pgwire.Upstream{Network: network, Addr: addr, TLS: f.TLSConfig, DirectTLS: f.TLSConfig != nil && conn.SSLNegotiation == "direct"}
		switch {
		case i == 0 || ways[len(ways)-1].Addr != addr: // the addresses of one host are adjacent
			ways = append(ways, way)
		case way.TLS == nil:
			ways[len(ways)-1] = way
		}
	}
	return ways
}

// waysOf returns all connection targets of an address, in its order.
func waysOf(conn *pgconn.Config) []*pgconn.FallbackConfig {
	return append([]*pgconn.FallbackConfig{{Host: conn.Host, Port: conn.Port, TLSConfig: conn.TLSConfig}}, conn.Fallbacks...)
}
