package primary

import (
	"crypto/tls"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
)

// Host is one way to a PostgreSQL server.
type Host struct {
	// Network and Addr are those of [net.Dial].
	Network, Addr string
	// TLS is nil for a plain connection.
	TLS *tls.Config
	// DirectTLS starts with the handshake, as sslnegotiation=direct does.
	DirectTLS bool
	// Server distinguishes servers that successively have the same address. "": not known.
	Server string
}

// hostsOf returns one way to each host of an address. It is plain where the address also allows a plain connection
// (sslmode prefer, the default, and allow): clients log in through it, and SCRAM with channel binding fails across two
// different TLS connections.
func hostsOf(conn *pgconn.Config) []Host {
	var hosts []Host
	for i, f := range waysOf(conn) {
		network, addr := pgconn.NetworkAddress(f.Host, f.Port)
		way := Host{Network: network, Addr: addr, TLS: f.TLSConfig, DirectTLS: f.TLSConfig != nil && conn.SSLNegotiation == "direct"}
		switch {
		case i == 0 || hosts[len(hosts)-1].Addr != addr: // the addresses of one host are adjacent
			hosts = append(hosts, way)
		case way.TLS == nil:
			hosts[len(hosts)-1] = way
		}
	}
	return hosts
}

// pin keeps the addresses of config that lead to one host, and all of them if none does, for example with a pooler in
// between.
func pin(config *pgconn.Config, addr string) {
	ways := slices.DeleteFunc(waysOf(config), func(f *pgconn.FallbackConfig) bool {
		_, to := pgconn.NetworkAddress(f.Host, f.Port)
		return to != addr
	})
	if len(ways) > 0 {
		config.Host, config.Port, config.TLSConfig, config.Fallbacks = ways[0].Host, ways[0].Port, ways[0].TLSConfig, ways[1:]
	}
}

// waysOf returns all connection targets of an address, in its order.
func waysOf(conn *pgconn.Config) []*pgconn.FallbackConfig {
	return append([]*pgconn.FallbackConfig{{Host: conn.Host, Port: conn.Port, TLSConfig: conn.TLSConfig}}, conn.Fallbacks...)
}
