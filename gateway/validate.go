package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/leases"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/gateway/primary"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/lockmetrics"
	"github.com/fencegate/fencegate/lock/pglock"
)

// Validate reports what [New] would refuse, without opening anything but certificate files. It returns a
// [*fence.InvalidError] that names the field and shows no secret: the first of [Config.Faults].
func (c Config) Validate() error {
	return cmp.Or(append(c.Faults(), nil)...)
}

// Faults returns all faults that [Config.Validate] finds.
func (c Config) Faults() []error {
	_, all := c.parse()
	return all
}

// GeneratesToken reports whether [New] generates a bearer token: the API would otherwise serve everyone off loopback.
func (c Config) GeneratesToken() bool {
	return c.API.BearerToken == "" && c.Principals == nil && !loopback(c.APIListen)
}

// parse parses the configuration and returns all faults.
func (c Config) parse() (p parsed, all []error) {
	refuse := func(err error) {
		if err != nil {
			all = append(all, err)
		}
	}
	all = c.faultsOfFields()
	refuse(c.validateRecords())
	refuse(c.validateSource())
	var err error
	p.prefixes, err = lockmetrics.NewPrefixes(c.MetricsPrefixes)
	refuse(err)
	all = append(all, c.faultsOfListens()...)
	database := ""
	if p.pool, err = pgxpool.ParseConfig(c.PostgresURL); err == nil {
		database = p.pool.ConnConfig.Database
	}
	if p.current, p.masters, err = credentials.ParseMasterKeys(c.MasterKey); err == nil {
		p.keyring, err = credentials.NewKeyring(p.current, p.masters)
	}
	refuse(err)
	p.buckets = make(map[string]objects.Rule, len(c.Buckets))
	for _, name := range slices.Sorted(maps.Keys(c.Buckets)) {
		p.buckets[name], err = objects.ParseRule(c.Buckets[name])
		refuse(err)
		refuse(objects.CheckBucketName(name))
	}
	if invalid, ok := errors.AsType[*fence.InvalidError](pgwire.CheckRules(c.PG.Rules, database)); ok {
		refuse(&fence.InvalidError{Field: "PG." + invalid.Field, Reason: invalid.Reason})
	}
	refuse(p.readAdvertised(c))
	return p, append(all, p.readTLS(c)...)
}

// faultsOfFields are the faults of single fields, and of fields that need others.
func (c Config) faultsOfFields() (all []error) {
	all = c.Table().Faults()
	if c.S3Listen != "" && c.BlobDir == "" {
		all = append(all, &fence.InvalidError{Field: "BlobDir", Reason: "is missing; the S3 port needs it"})
	}
	if c.MaxTTL > 0 && c.DefaultTTL > c.MaxTTL {
		all = append(all, &fence.InvalidError{Field: "DefaultTTL", Reason: "is over MaxTTL"})
	}
	return all
}

// validateSource refuses a configuration with no source of leases or with several.
func (c Config) validateSource() error {
	switch {
	case c.PostgresLeases && (len(c.RedisNodes) > 0 || c.Leases != nil):
		return &fence.InvalidError{Field: "PostgresLeases", Reason: "is one source of leases, and RedisNodes or Leases another: give one"}
	case len(c.RedisNodes) == 0 && c.Leases == nil && !c.PostgresLeases:
		return &fence.InvalidError{Field: "RedisNodes", Reason: "are missing"}
	}
	switch c.LeaseSource {
	case "":
	case "etcd", "zookeeper", "kubernetes", primary.SourceOther:
		if c.Leases == nil {
			return &fence.InvalidError{Field: "LeaseSource", Reason: "is about Leases"}
		}
	default:
		return &fence.InvalidError{Field: "LeaseSource", Reason: "is none of etcd, zookeeper, kubernetes, other"}
	}
	if c.BestEffort && len(c.RedisNodes) == 0 {
		return &fence.InvalidError{Field: "BestEffort", Reason: "is about RedisNodes"}
	}
	if c.DatabaseKeys && (c.KeyPrefix != "" || len(c.RedisNodes) == 0) {
		return &fence.InvalidError{Field: "DatabaseKeys", Reason: "is about RedisNodes, and stands in place of a KeyPrefix"}
	}
	if c.PostgresLeases {
		return pglock.Config{Pool: new(pgxpool.Pool), MaxTTL: c.MaxTTL}.Validate() // the pool is opened later
	}
	if len(c.RedisNodes) == 0 {
		return nil
	}
	if err := validateNodes(c.RedisNodes); err != nil {
		return err
	}
	return c.locker().Validate()
}

// validateNodes refuses addresses to which no connection is possible.
func validateNodes(nodes []lock.Node) error {
	var addrs []string
	for _, n := range nodes {
		if len(n.Sentinels) > 0 {
			addrs = append(addrs, n.Sentinels...)
		} else if !strings.HasPrefix(n.Addr, "/") { // not a Unix socket
			addrs = append(addrs, n.Addr)
		}
	}
	for _, addr := range addrs {
		host, port, err := net.SplitHostPort(addr)
		number, numberErr := strconv.ParseUint(port, 10, 16)
		if err != nil || host == "" || numberErr != nil || number == 0 {
			return &fence.InvalidError{Field: "RedisNodes", Reason: fmt.Sprintf("has the address %q; host:port is needed, such as redis1:6379", addr)}
		}
	}
	return nil
}

// faultsOfListens are the faults of listen addresses: malformed ones, and those of another port.
func (c Config) faultsOfListens() (all []error) {
	if c.Principals != nil && c.Principals.KnowsCertificates() && c.APITLSClientCA == "" {
		all = append(all, errUnverified)
	}
	type listen struct {
		name, host string
		port       int
	}
	var others []listen
	for _, l := range []struct{ field, name, addr string }{
		{"APIListen", "the HTTP API", cmp.Or(c.APIListen, defaultAPIListen)},
		{"PGListen", "the PostgreSQL port", c.PGListen},
		{"S3Listen", "the S3 port", c.S3Listen},
		{"MetricsListen", "the metrics", c.MetricsListen},
	} {
		if l.addr == "" {
			continue
		}
		refuse := func(reason string) {
			all = append(all, &fence.InvalidError{Field: l.field, Reason: fmt.Sprintf("is %q; %s", l.addr, reason)})
		}
		host, port, err := net.SplitHostPort(l.addr)
		if err != nil {
			refuse("HOST:PORT is needed, such as 127.0.0.1:7070")
			continue
		}
		number, err := net.LookupPort("tcp", port) // as net.Listen does
		if err != nil {
			refuse("the port must be 0 to 65535")
			continue
		}
		for _, o := range others {
			if number != 0 && number == o.port && sameHost(host, o.host) {
				refuse(o.name + " listens there already; each needs an address of its own")
				break
			}
		}
		others = append(others, listen{l.name, host, number})
	}
	return all
}

// sameHost reports whether two listeners on one port of these hosts exclude each other. It looks up no name other than
// localhost.
func sameHost(a, b string) bool {
	x, y := hostAddr(a), hostAddr(b)
	if !x.IsValid() || !y.IsValid() {
		return strings.EqualFold(a, b) || x.IsValid() && x.IsUnspecified() || y.IsValid() && y.IsUnspecified()
	}
	return x == y || x.IsUnspecified() || y.IsUnspecified() // 0.0.0.0 listens on IPv6, too
}

// hostAddr returns the address that a listener's host stands for; the zero value for a name other than localhost.
func hostAddr(host string) netip.Addr {
	switch {
	case host == "":
		return netip.IPv6Unspecified()
	case strings.EqualFold(host, "localhost"):
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}
	}
	return addr.Unmap()
}

// loopback reports whether a listen address can be reached from this machine only. It looks up no name other than
// localhost.
func loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

// locker is the locker's part of the configuration.
func (c Config) locker() lock.Config {
	return lock.Config{
		Nodes: c.RedisNodes, Armer: leases.Armer{}, MaxTTL: c.MaxTTL, DefaultTTL: c.DefaultTTL, NodeTimeout: c.NodeTimeout,
		KeyPrefix: lock.Prefix(c.KeyPrefix), Embedded: c.EmbeddedNodes, BestEffort: c.BestEffort,
	}
}
