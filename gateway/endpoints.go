package gateway

import (
	"cmp"
	"net"
	"net/netip"
	"net/url"
	"strconv"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/wire"
)

// endpoints returns the addresses of the other ports for a client that reached the API by host.
func (g *Gateway) endpoints(host string) wire.Endpoints {
	addrs := g.Addrs()
	e := wire.Endpoints{Version: g.cfg.Version}
	if addrs.PG != "" {
		at, port := g.reachable(addrs.PG, host)
		if g.parsed.pgAdvertise.host != "" {
			at, port = g.parsed.pgAdvertise.host, g.parsed.pgAdvertise.port
		}
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
		e.S3 = &wire.S3Endpoint{URL: cmp.Or(g.cfg.S3Advertise, scheme+net.JoinHostPort(at, strconv.Itoa(port))), Region: g.cfg.S3.Region}
	}
	return e
}

func (g *Gateway) reachable(listens, host string) (string, int) {
	own, text, _ := net.SplitHostPort(listens) // the listener's own address
	port, _ := strconv.Atoi(text)
	switch addr, err := netip.ParseAddr(own); {
	case g.cfg.AdvertiseHost != "":
		return g.cfg.AdvertiseHost, port
	case err == nil && !addr.IsUnspecified():
		return own, port
	}
	return host, port
}

// address is a host and a port.
type address struct {
	host string
	port int
}

// readAdvertised parses the addresses by which clients reach the ports behind a balancer.
func (p *parsed) readAdvertised(c Config) error {
	if c.PGAdvertise != "" {
		host, text, err := net.SplitHostPort(c.PGAdvertise)
		port, numberErr := strconv.ParseUint(text, 10, 16)
		if err != nil || host == "" || numberErr != nil || port == 0 {
			return &fence.InvalidError{Field: "PGAdvertise", Reason: "is not HOST:PORT, such as db.example.net:5432"}
		}
		p.pgAdvertise = address{host, int(port)}
	}
	if c.S3Advertise == "" {
		return nil
	}
	u, err := url.Parse(c.S3Advertise)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Path != "" {
		return &fence.InvalidError{Field: "S3Advertise", Reason: "is not of the form https://HOST or https://HOST:PORT"}
	}
	return nil
}
