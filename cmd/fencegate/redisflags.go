package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/pflag"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/option"
	"github.com/fencegate/fencegate/internal/regular"
	"github.com/fencegate/fencegate/internal/tlsfiles"
	"github.com/fencegate/fencegate/lock"
)

// redisFlags are the flags of commands that talk to the Redis nodes.
type redisFlags struct {
	addrs                  []string
	user                   string
	passwordFile           string
	prefix                 string
	durable, tls           bool
	ca, cert, key, tlsName string
}

const nodeForms = "host:port each, or rediss://USER@host:port for TLS; NAME@host:port+host:port for the primary that Sentinels at these addresses call NAME"

// table declares the flags. more follows the help of --redis.
func (r *redisFlags) table(more string) option.Table {
	return option.Table{
		{Field: "RedisNodes", At: &r.addrs, Aliases: map[string]string{"nodes": " nodes"}, Flag: "redis", Key: "redis.nodes", Split: true, Common: true, Help: "addresses of the independent Redis nodes, 1, 3 or 5 of them, " + nodeForms + more},
		{Field: "KeyPrefix", At: &r.prefix, Check: checkPrefix, Flag: "redis-prefix", Help: "prefix of all keys on the Redis nodes, the same for all gateways and commands of a database (default: fencegate: and the database's UUID, which PostgreSQL has)"},
		{Field: "redis user", At: &r.user, Flag: "redis-user", Help: "user name on the Redis nodes"},
		{Field: "redis password", At: &r.passwordFile, Flag: "redis-password-file", Common: true, Secret: true, Help: "file with the Redis nodes' password, read again for each login (or the password itself in FENCEGATE_REDIS_PASSWORD)"},
		{Field: "redis durable", At: &r.durable, Flag: "redis-durable", Help: "the only Redis node keeps all it acknowledged over each restart (appendonly yes, appendfsync always), and is never restored from a copy: it is admitted at once then"},
		{Field: "redis TLS", At: &r.tls, Flag: "redis-tls", Key: "redis.tls.enabled", Help: "speak TLS to all Redis nodes, and their Sentinels; so with each of the flags below"},
		{Field: "redis CA", At: &r.ca, Flag: "redis-tls-ca", Secret: true, Help: "file with the authorities of the Redis nodes' certificates (default: the system's)"},
		{Field: "redis certificate", At: &r.cert, With: "redis key", Flag: "redis-tls-cert", Secret: true, Help: "file with the certificate chain that is shown to the Redis nodes, read again for each connection (default: none)"},
		{Field: "redis key", At: &r.key, Flag: "redis-tls-key", Secret: true, Help: "file with its key"},
		{Field: "redis server name", At: &r.tlsName, Flag: "redis-tls-server-name", Help: "name that the Redis nodes' certificates must have (default: the host in the address)"},
	}
}

func (r *redisFlags) register(f *pflag.FlagSet, more string) { registerTable(f, r.table(more)) }

// maxPrefix is the longest prefix in bytes: each command carries it.
const maxPrefix = 200

// checkPrefix refuses a prefix that a person, a shell or a node's access list could misread.
func checkPrefix(prefix any) string {
	text := prefix.(string)
	odd := func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !strings.ContainsRune(".:_-/{}", c)
	}
	if len(text) <= maxPrefix && !strings.ContainsFunc(text, odd) && !strings.HasSuffix(text, ":") {
		return ""
	}
	return fmt.Sprintf("%q: at most %d letters, digits and any of . : _ - / { } are allowed, without a colon at the end, which is added", text, maxPrefix)
}

// check returns what is wrong with the flags' values.
func (r *redisFlags) check() error { return first(flagFaults(r.table(""))) }

// keyPrefix returns --redis-prefix, or else the prefix of the database at url. url "" means no database.
func (r *redisFlags) keyPrefix(ctx context.Context, url string) (string, error) {
	switch {
	case r.prefix != "":
		return r.prefix, r.check()
	case url == "":
		return "", usage(errors.New("the nodes may serve several databases: name this one with --postgres-url (or FENCEGATE_POSTGRES_URL), or the prefix of its keys with --redis-prefix"))
	}
	var prefix string
	err := (&databaseFlags{url: url}).read(ctx, func(ctx context.Context, pool *pgxpool.Pool) (err error) {
		prefix, err = pgfence.KeyPrefix(pool)(ctx)
		return err
	})
	if err != nil {
		err = withHint(err, exitOf(err), "with --redis-prefix PostgreSQL is not asked; the log of a gateway names it")
	}
	return prefix, err
}

// nodes returns the nodes that the flags name; none if --redis is missing.
func (r *redisFlags) nodes(e env) ([]lock.Node, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	password, _ := e.lookup(redisPasswordVariable)
	if r.passwordFile != "" {
		var err error
		if password, err = readSecret("--redis-password-file", r.passwordFile); err != nil {
			return nil, err
		}
	}
	secure, err := r.tlsConfig()
	if err != nil {
		return nil, err
	}
	nodes := make([]lock.Node, len(r.addrs))
	for i, addr := range r.addrs {
		at, err := parseNode(addr)
		if err != nil {
			return nil, withHint(fmt.Errorf("--redis: address %d %w", i+1, err), exitUsage,
				"host:port, rediss://USER@host:port or NAME@host:port+host:port; a password comes by --redis-password-file or FENCEGATE_REDIS_PASSWORD")
		}
		nodes[i] = nodeAt(at.rest, cmp.Or(at.user, r.user), password, r.passwordFile)
		nodes[i].Durable = r.durable
		if at.secure || r.secure() {
			nodes[i].TLS = secure
		}
	}
	return nodes, nil
}

func (r *redisFlags) secure() bool {
	return r.tls || r.ca != "" || r.cert != "" || r.key != "" || r.tlsName != ""
}

// address is one parsed value of --redis.
type address struct {
	user, rest string // rest is nodeAt's input
	secure     bool
}

// parseNode parses an address. A URL may not contain a password: command lines are visible to others, and a password
// must not be mistaken for a user name and shown.
func parseNode(text string) (address, error) {
	if !strings.Contains(text, "://") {
		if name, _, named := strings.Cut(text, "@"); named && (name == "" || strings.ContainsAny(name, ":/")) {
			return address{}, errors.New("is neither host:port nor NAME@host:port+host:port")
		}
		return address{rest: text}, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "redis" && u.Scheme != "rediss" {
		return address{}, errors.New("is not a URL that begins with redis:// or rediss://")
	}
	if _, has := u.User.Password(); has {
		return address{}, errors.New("has a password in it")
	}
	if u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.Port() == "" || u.Hostname() == "" {
		return address{}, errors.New("is a URL with more or less than a user, a host and a port")
	}
	return address{user: u.User.Username(), rest: u.Host, secure: u.Scheme == "rediss"}, nil
}

// tlsConfig returns the TLS configuration for the nodes.
func (r *redisFlags) tlsConfig() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: r.tlsName}
	var err error
	if cfg.RootCAs, err = r.authorities(); err != nil {
		return nil, err
	}
	if r.cert == "" || r.key == "" {
		return cfg, nil
	}
	if _, err := tlsfiles.Pair(r.cert, r.key); err != nil {
		return nil, usage(fmt.Errorf("--redis-tls-cert: %w", err))
	}
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tlsfiles.Pair(r.cert, r.key)
		return &pair, err
	}
	return cfg, nil
}

// authorities returns those that the nodes' certificates must come from; nil: the system's.
func (r *redisFlags) authorities() (*x509.CertPool, error) {
	if r.ca == "" {
		return nil, nil //nolint:nilnil // nil means the system's authorities, as in tls.Config
	}
	pem, err := regular.Read(r.ca, regular.MaxBytes)
	if err != nil {
		return nil, usage(fmt.Errorf("--redis-tls-ca: %w", err))
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, usage(fmt.Errorf("--redis-tls-ca: %s has no certificate in it", r.ca))
	}
	return pool, nil
}

// nodeAt builds a node from a flag's parts. The file, if any, holds the password, and is read again for each login.
func nodeAt(text, user, password, file string) lock.Node {
	n := lock.Node{Addr: text, Username: user, Password: password}
	if file != "" {
		n.Credentials = func() (string, string, error) {
			password, err := readSecret("--redis-password-file", file)
			return user, password, err
		}
	}
	if name, sentinels, ok := strings.Cut(text, "@"); ok {
		n.Addr, n.MasterName, n.Sentinels = "", name, strings.Split(sentinels, "+")
	}
	return n
}
