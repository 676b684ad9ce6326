package pgwire

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/internal/option"
)

// Options are the port's options for users.
type Options struct {
	// Rules say what sessions without a current grant may do; the first match applies. [Server.Permit] replaces them.
	// Defaults to none: every session is relayed.
	Rules []Rule

	// MaxConnections bounds the open connections; further clients are refused with FATAL 53300. Defaults to 1000.
	MaxConnections int
	// MaxUserConnections bounds the sessions of one user; a further one is refused with FATAL 53300 after its login.
	// Defaults to 0: no limit except MaxConnections.
	MaxUserConnections int

	// MaxAddressLogins bounds the connections of one address that have not logged in yet; a further one is refused like
	// one beyond MaxConnections. Unix sockets do not count. Defaults to half of MaxConnections.
	MaxAddressLogins int
	// ProxyNetworks are the networks of balancers whose connections begin with a header of the PROXY protocol, version
	// 2, which contains the client's address. Such a connection without a header is closed. Defaults to none: no header
	// is accepted.
	ProxyNetworks []netip.Prefix

	// NamesClients makes a session's application_name begin as "NAME @ADDRESS:PORT", with the client's address, except
	// for replication. The client's own name is truncated if both exceed PostgreSQL's 63 bytes. Defaults to false:
	// startup packets are passed on unchanged.
	NamesClients bool

	// FirstByteTimeout bounds the time from accepting a connection to its first byte. Defaults to 5 s, and is
	// never more than LoginTimeout.
	FirstByteTimeout time.Duration
	// LoginTimeout bounds the time from accepting a connection to its first
	// ReadyForQuery. Defaults to 30 s.
	LoginTimeout time.Duration
	// DialTimeout bounds connecting to PostgreSQL. Defaults to 10 s.
	DialTimeout time.Duration
	// IdleTimeout ends a session, FATAL 57P05, that has been idle this long outside a transaction. Defaults to 0:
	// never.
	IdleTimeout time.Duration
	// IdleInTransactionTimeout ends a session, FATAL 25P03, that has been idle this long inside a transaction. Defaults
	// to 0: never.
	IdleInTransactionTimeout time.Duration
	// SlowClientTimeout ends a session whose client, for this long, reads nothing of what PostgreSQL sends, or leaves a
	// message of its own unfinished. Defaults to 0: never. Such a client occupies a buffer of the gateway, and keeps
	// its session and its locks.
	SlowClientTimeout time.Duration
	// KeepAlive is the idle time after which TCP probes both peers. Defaults to 30 s.
	KeepAlive time.Duration
	// FencesEvery is how often the server asks the fence for superseded grants of its sessions, unless
	// [Server.Superseded] has reported them before. Defaults to 1 s.
	FencesEvery time.Duration
}

// Table declares the options, with the flags of `fencegate serve`.
func (o *Options) Table() option.Table {
	return option.Table{
		{Field: "Rules", At: &o.Rules, Aliases: map[string]string{"policy": "", "PG.policy": " (or its file)"}, Flag: "pg-policy", Common: true, Secret: true, Reload: option.Applies, Help: "what sessions without a current grant may do: USER=POLICY or USER@DATABASE=POLICY, with open, read-only or grant-required, and * for all; the first that fits counts (may be repeated; default: open)"},
		{Field: "MaxConnections", At: &o.MaxConnections, Default: 1000, Check: option.Positive, Flag: "pg-max-connections", Help: "how many connections the PostgreSQL port takes at once"},
		{Field: "MaxUserConnections", At: &o.MaxUserConnections, Flag: "pg-max-user-connections", Help: "how many of them one role may have (default: no limit of its own)"},
		{Field: "MaxAddressLogins", At: &o.MaxAddressLogins, Flag: "pg-max-address-logins", Help: "how many connections of one address may be on their way to a login (default: half of --pg-max-connections)"},
		{Field: "ProxyNetworks", At: &o.ProxyNetworks, Flag: "pg-proxy-from", Split: true, Help: "networks of balancers whose connections to the PostgreSQL port begin with a header of the PROXY protocol, version 2, such as 10.0.0.0/24 (may be repeated; default: none)"},
		{Field: "NamesClients", At: &o.NamesClients, Flag: "pg-client-in-name", Preset: true, Help: "add the client's address to the application_name of sessions, which pg_stat_activity shows"},
		{Field: "LoginTimeout", At: &o.LoginTimeout, Default: 30 * time.Second, Check: option.Positive, Flag: "pg-login-timeout", Help: "how long a login to the PostgreSQL port may take"},
		{Field: "FirstByteTimeout", At: &o.FirstByteTimeout, Default: 5 * time.Second, Check: option.Positive, Flag: "pg-first-byte-timeout", Help: "how long a client of the PostgreSQL port may take to send its first byte"},
		{Field: "DialTimeout", At: &o.DialTimeout, Default: 10 * time.Second},
		{Field: "IdleTimeout", At: &o.IdleTimeout, Flag: "pg-idle-timeout", Help: "end sessions that have been idle for this long outside of a transaction (default: never)"},
		{Field: "IdleInTransactionTimeout", At: &o.IdleInTransactionTimeout, Flag: "pg-idle-in-transaction-timeout", Help: "end sessions that have been idle for this long inside of a transaction (default: never)"},
		{Field: "SlowClientTimeout", At: &o.SlowClientTimeout, Flag: "pg-slow-client-timeout", Help: "end sessions whose client reads nothing of what PostgreSQL sends, or leaves a message unfinished, for this long (default: never)"},
		{Field: "KeepAlive", At: &o.KeepAlive, Default: 30 * time.Second},
		{Field: "FencesEvery", At: &o.FencesEvery, Default: time.Second},
	}
}

// Config says what a [Server] relays to and works with. [New] validates it once.
type Config struct {
	Options

	// Network and Addr name the upstream PostgreSQL, as net.Dial takes them:
	// "tcp" and "host:port", or "unix" and the path of the socket.
	// Network defaults to "tcp". Addr is required.
	Network, Addr string

	// Database is the only database that is served; a client that asks for another is refused. Defaults to "", which
	// serves every name.
	Database string

	// TLS is offered to clients that ask for it. If its ClientAuth asks for certificates, clients without one are
	// refused. [TLSFiles] creates one from files. Defaults to nil: no TLS.
	TLS *tls.Config

	// UpstreamTLS and UpstreamDirectTLS are used towards Addr, as in [Upstream].
	// Default to nil and false: a plain connection.
	UpstreamTLS       *tls.Config
	UpstreamDirectTLS bool

	// Fallbacks are other ways to PostgreSQL, tried in this order if the previous ones cannot be reached. Defaults to
	// none.
	Fallbacks []Upstream

	// Suitable returns before each login which of the upstreams may be used, the best one first: for example the
	// primary of several servers. Defaults to nil: all, in order; a login then waits for each that does not answer.
	Suitable func(context.Context) ([]Upstream, error)
	// Judge is called before the fence checks the grant of a session whose policy needs one. The function that it
	// returns is called with the result of fence.identity() in that session. An error of either refuses the session.
	// Defaults to nil: the fence of each server is accepted.
	Judge func(context.Context) (func(identity string, written uint64) error, error)

	// Fences returns the tokens that the fence records for these resources, without those that it does not know. With
	// it, sessions with a grant in their startup options are ended, FATAL ZF001, once a newer one is recorded. Defaults
	// to nil: the fence refuses their writes, but they keep their locks.
	Fences func(ctx context.Context, resources []string) (map[string]fence.Token, error)

	// EndBackend terminates the backend with this process id if its client has this port, and reports whether it did.
	// It is for statements of ended sessions that ignore a cancel request. Defaults to nil: their connection is closed,
	// and they continue to run.
	EndBackend func(ctx context.Context, pid uint32, port int) (bool, error)

	// Metrics receives measurements. Defaults to nil: none.
	Metrics Metrics
	// Tell receives events for people: writes that the fence refused, and ends of sessions. It is called while sessions
	// wait. Defaults to nil: none.
	Tell func(activity.Event)

	// DrainTimeout bounds how long a stopping [Server.Serve] waits for sessions to reach the end of a transaction.
	// Defaults to 10 s.
	DrainTimeout time.Duration

	// Logger receives refusals and failures, never SQL or a startup option. Defaults to slog.Default().
	Logger *slog.Logger
}

func (c *Config) table() option.Table {
	return append(c.Options.Table(), option.Row{Field: "DrainTimeout", At: &c.DrainTimeout, Default: 10 * time.Second})
}

func (c Config) withDefaults() Config {
	if c.Network == "" {
		c.Network = "tcp"
	}
	c.Fallbacks = slices.Clone(c.Fallbacks)
	for i := range c.Fallbacks {
		if c.Fallbacks[i].Network == "" {
			c.Fallbacks[i].Network = "tcp"
		}
	}
	c.table().SetDefaults()
	c.MaxAddressLogins = cmp.Or(c.MaxAddressLogins, (c.MaxConnections+1)/2)
	c.FirstByteTimeout = min(c.FirstByteTimeout, c.LoginTimeout)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.Metrics == nil {
		c.Metrics = noMetrics{}
	}
	if c.TLS != nil {
		c.TLS = c.TLS.Clone()
		if !slices.Contains(c.TLS.NextProtos, alpn) {
			c.TLS.NextProtos = append(c.TLS.NextProtos, alpn)
		}
	}
	return c
}

// ways returns all ways to PostgreSQL in order.
func (c Config) ways() []Upstream {
	first := Upstream{Network: c.Network, Addr: c.Addr, TLS: c.UpstreamTLS, DirectTLS: c.UpstreamDirectTLS}
	return append([]Upstream{first}, c.Fallbacks...)
}

func (c Config) validate() error {
	for _, u := range c.ways() {
		switch {
		case u.Addr == "":
			return &fence.InvalidError{Field: "Addr", Reason: "is empty; it names the upstream PostgreSQL"}
		case u.Network != "tcp" && u.Network != "tcp4" && u.Network != "tcp6" && u.Network != "unix":
			return &fence.InvalidError{Field: "Network", Reason: "is neither tcp nor unix"}
		}
	}
	if err := c.table().Validate(); err != nil {
		return err
	}
	return CheckRules(c.Rules, c.Database)
}
