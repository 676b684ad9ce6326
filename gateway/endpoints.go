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

// endpoints are the addresses by which clients reach the ports.
type endpoints struct {
	cfg      Config
	postgres address // of the PostgreSQL port, behind a balancer; zero: none
	database string
	addrs    func() Addrs
}

// from returns the addresses of the other ports for a client that reached the API by host.
func (e endpoints) from(host string) wire.Endpoints {
	addrs := e.addrs()
	all := wire.Endpoints{Version: e.cfg.Version}
	if addrs.PG != "" {
		at, port := e.reachable(addrs.PG, host)
		if e.postgres.host != "" {
			at, port = e.postgres.host, e.postgres.port
		}
		all.Postgres = &wire.PostgresEndpoint{Host: at, Port: port, Database: e.database}
	}
	if addrs.S3 != "" {
		at, port := e.reachable(addrs.S3, host)
		scheme := "http://"
		if e.cfg.S3TLSCert != "" {
			scheme = "https://"
		}
		if e.cfg.S3.Domain != "" && e.cfg.AdvertiseHost == "" {
			at = e.cfg.S3.Domain // so that clients may put the bucket before it
		}
		all.S3 = &wire.S3Endpoint{URL: cmp.Or(e.cfg.S3Advertise, scheme+net.JoinHostPort(at, strconv.Itoa(port))), Region: e.cfg.S3.Region}
	}
	return all
}

func (e endpoints) reachable(listens, host string) (string, int) {
	own, text, _ := net.SplitHostPort(listens) // the listener's own address
	port, _ := strconv.Atoi(text)
	switch addr, err := netip.ParseAddr(own); {
	case e.cfg.AdvertiseHost != "":
		return e.cfg.AdvertiseHost, port
	case err == nil && !addr.IsUnspecified():
		return own, port
	}
	return host, port
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
