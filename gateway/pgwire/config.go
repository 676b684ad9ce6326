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
)

// Options are what a user of the port may choose.
type Options struct {
	// Permits are what the port begins with; [Server.Permit] changes them.
	Permits
	// MaxLeaseWait is the longest wait for a lease that a session may ask for.
	// Defaults to 5 min.
	MaxLeaseWait time.Duration

	// MaxConnections is how many connections may be open at once; a client beyond
	// them is refused with FATAL 53300. Defaults to 1000.
	MaxConnections int
	// MaxUserConnections is how many sessions one user may have at once; a further one
	// is refused with FATAL 53300 once it has logged in. Defaults to 0: no limit but
	// MaxConnections.
	MaxUserConnections int

	// MaxAddressLogins is how many connections of one address may be under way to their login; a
	// further one is refused as one beyond MaxConnections. Those by a Unix socket do not count. Defaults to half of MaxConnections.
	MaxAddressLogins int
	// ProxyNetworks are those of the balancers whose connections begin with a header of the PROXY protocol, version 2,
	// which says where the client is. Such a connection without one is closed. Defaults to none: no header is accepted.
	ProxyNetworks []netip.Prefix

	// NamesClients has a session's application_name begin as "NAME @ADDRESS:PORT", with the client's address, but for
	// replication. The name that the client asked for is cut where both exceed PostgreSQL's 63 bytes. Defaults to false:
	// startup packets go on verbatim.
	NamesClients bool

	// FirstByteTimeout bounds the time from accepting a connection to its first byte. Defaults to 5 s, and is
	// never more than LoginTimeout.
	FirstByteTimeout time.Duration
	// LoginTimeout bounds the time from accepting a connection to its first
	// ReadyForQuery, without a wait for a lease. Defaults to 30 s.
	LoginTimeout time.Duration
	// DialTimeout bounds connecting to PostgreSQL. Defaults to 10 s.
	DialTimeout time.Duration
	// IdleTimeout ends a session, FATAL 57P05, that has been idle for so long, outside
	// of a transaction. Defaults to 0: never.
	IdleTimeout time.Duration
	// IdleInTransactionTimeout ends one, FATAL 25P03, that has been idle inside of a
	// transaction. Defaults to 0: never.
	IdleInTransactionTimeout time.Duration
	// SlowClientTimeout ends a session whose client, for so long, takes nothing of what
	// PostgreSQL sends it, or leaves a message of its own unfinished. Defaults to 0: never;
	// such a client costs a buffer here, and holds its session, its lease and what
	// it has locked.
	SlowClientTimeout time.Duration
	// KeepAlive is the idle time after which TCP probes both peers. Defaults to 30 s.
	KeepAlive time.Duration
	// FencesEvery is how often the fence is asked whether sessions' grants are superseded,
	// where nothing else has said so. Defaults to 1 s.
	FencesEvery time.Duration
}

// Validate reports a [*fence.InvalidError] that names the field. database is the one
// that is served; "": every one.
func (o Options) Validate(database string) error {
	switch {
	case min(o.MaxConnections, o.MaxUserConnections, o.MaxAddressLogins) < 0:
		return &fence.InvalidError{Field: "MaxConnections", Reason: "or MaxUserConnections or MaxAddressLogins is negative"}
	case min(o.LoginTimeout, o.FirstByteTimeout, o.DialTimeout, o.KeepAlive, o.FencesEvery, o.MaxLeaseWait, o.IdleTimeout, o.IdleInTransactionTimeout, o.SlowClientTimeout) < 0:
		return &fence.InvalidError{Field: "timeouts", Reason: "include a negative one"}
	}
	return CheckRules(o.Rules, database)
}

func (o Options) withDefaults() Options {
	o.MaxConnections = cmp.Or(o.MaxConnections, 1000)
	o.MaxAddressLogins = cmp.Or(o.MaxAddressLogins, (o.MaxConnections+1)/2)
	o.LoginTimeout = cmp.Or(o.LoginTimeout, 30*time.Second)
	o.FirstByteTimeout = min(cmp.Or(o.FirstByteTimeout, 5*time.Second), o.LoginTimeout)
	o.DialTimeout = cmp.Or(o.DialTimeout, 10*time.Second)
	o.KeepAlive = cmp.Or(o.KeepAlive, 30*time.Second)
	o.FencesEvery = cmp.Or(o.FencesEvery, time.Second)
	o.MaxLeaseWait = cmp.Or(o.MaxLeaseWait, 5*time.Minute)
	return o
}

// Config says what a [Server] relays to, and with what it works. It is validated once, by [New].
type Config struct {
	Options

	// Network and Addr name the upstream PostgreSQL, as net.Dial takes them:
	// "tcp" and "host:port", or "unix" and the path of the socket.
	// Network defaults to "tcp". Addr is required.
	Network, Addr string

	// Database is the one database that is served; a client that asks for another
	// is refused. Defaults to "", which serves every name.
	Database string

	// TLS is offered to clients that ask for it. Where its ClientAuth asks for
	// certificates, clients without one are refused. [TLSFiles] makes one of files.
	// Defaults to nil: none is offered.
	TLS *tls.Config

	// UpstreamTLS and UpstreamDirectTLS are used towards Addr, as in [Upstream].
	// Default to nil and false: a plain connection.
	UpstreamTLS       *tls.Config
	UpstreamDirectTLS bool

	// Fallbacks are other ways to PostgreSQL, tried in this order while the ones
	// before can't be reached. Defaults to none.
	Fallbacks []Upstream

	// Suitable says before each login which of the upstreams may be used, the best
	// one first: the primary of several servers, say. Defaults to nil: all, each of which
	// a login waits for while the ones before do not answer.
	Suitable func(context.Context) ([]Upstream, error)
	// Judge is called before the fence checks the grant of a session whose policy needs one. What it returns is called with
	// what fence.identity() says in that session. An error of either refuses the session. Defaults to nil: the
	// fence of each server is accepted.
	Judge func(context.Context) (func(identity string, written uint64) error, error)

	// Fences reports the tokens that the fence records for these resources; one that
	// it does not know is absent. With it, sessions whose startup options carried a
	// grant are ended, FATAL ZF001, once a newer one is recorded. Defaults to nil:
	// the fence refuses their writes, but what they have locked stays locked.
	Fences func(ctx context.Context, resources []string) (map[string]fence.Token, error)

	// Leases gives sessions that ask for it (fence.lease in the startup options) a
	// lease for the life of the connection. Defaults to nil: they are refused.
	Leases Leases
	// MayLease reports whether a role may lease a resource beside what the lease rules allow;
	// it is asked again at each renewal, and so are the rules then. Defaults to nil: the rules alone decide, at the login.
	MayLease func(role, resource string) bool
	// Nonce reports what the fence knows of a nonce and a resource, so that a session whose
	// nonce is spent, or holds the resource already, is told at once. Defaults to nil:
	// arming decides, after the wait.
	Nonce func(ctx context.Context, resource string, hash []byte) (fence.NonceRecord, error)
	// EndBackend terminates the backend with this process id, if its client's port is this
	// one, and reports whether it did: for statements of ended sessions that ignore a cancel.
	// Defaults to nil: their connection is closed, and they run on.
	EndBackend func(ctx context.Context, pid uint32, port int) (bool, error)
	// DefaultTTL is a lease's length where the session names none. Defaults to 30 s.
	DefaultTTL time.Duration
	// MaxTTL is the longest lease. Defaults to 5 min.
	MaxTTL time.Duration

	// Metrics is told what happens. Defaults to nil: none.
	Metrics Metrics
	// Tell is given what people should see: writes that the fence refused, and leases of
	// sessions. It is called while sessions wait. Defaults to nil: nobody is told.
	Tell func(activity.Event)

	// DrainTimeout bounds how long [Server.Serve] waits, once it is asked to stop,
	// for sessions to reach the end of a transaction. Defaults to 10 s.
	DrainTimeout time.Duration

	// Logger receives refusals and failures; never SQL, and no startup option.
	// Defaults to slog.Default().
	Logger *slog.Logger
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
	c.Options = c.Options.withDefaults()
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 10*time.Second)
	c.DefaultTTL = cmp.Or(c.DefaultTTL, 30*time.Second)
	c.MaxTTL = cmp.Or(c.MaxTTL, 5*time.Minute)
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

func (c Config) validate() error {
	for _, u := range c.upstreams() {
		switch {
		case u.Addr == "":
			return &fence.InvalidError{Field: "Addr", Reason: "is empty; it names the upstream PostgreSQL"}
		case u.Network != "tcp" && u.Network != "tcp4" && u.Network != "tcp6" && u.Network != "unix":
			return &fence.InvalidError{Field: "Network", Reason: "is neither tcp nor unix"}
		}
	}
	if min(c.DrainTimeout, c.DefaultTTL, c.MaxTTL) < 0 {
		return &fence.InvalidError{Field: "timeouts", Reason: "include a negative one"}
	}
	if err := c.validatePermits(c.Permits); err != nil {
		return err
	}
	return c.Options.Validate(c.Database)
}
