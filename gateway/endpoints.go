package gateway

import (
	"net"
	"net/netip"
	"strconv"

	"github.com/fencegate/fencegate/client/wire"
)

// endpoints tells a client that reached the API by host where the other ports are.
func (g *Gateway) endpoints(host string) wire.Endpoints {
	addrs := g.Addrs()
	e := wire.Endpoints{Version: g.cfg.Version}
	if addrs.PG != "" {
		at, port := g.reachable(addrs.PG, host)
		e.Postgres = &wire.PostgresEndpoint{Host: at, Port: port, Database: g.parsed.pool.ConnConfig.Database}
	}
	if addrs.S3 != "" {
		at, port := g.reachable(addrs.S3, host)
		scheme := "http://"
		if g.parsed.s3TLS != nil {
			scheme = "https://"
		}
		if g.cfg.S3.Domain != "" && g.cfg.AdvertiseHost == "" {
			at = g.cfg.S3.Domain // so that clients may put the bucket before it
		}
		e.S3 = &wire.S3Endpoint{URL: scheme + net.JoinHostPort(at, strconv.Itoa(port)), Region: g.cfg.S3.Region}
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
