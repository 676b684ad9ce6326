package lock

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// Defaults of [Config].
const (
	DefaultTTL         = 30 * time.Second
	DefaultMaxTTL      = 5 * time.Minute
	DefaultNodeTimeout = 50 * time.Millisecond
	DefaultDriftFactor = 0.01
	DefaultKeyPrefix   = "fencegate"
)

// MinTTL is the shortest TTL: below it the safety margin leaves nothing.
const MinTTL = 5 * time.Millisecond

// maxHolderBytes bounds the holder's name, which travels with each lock.
const maxHolderBytes = 256

// driftFloor is the fixed part of the safety margin: Redis counts in whole
// milliseconds.
const driftFloor = 2 * time.Millisecond

// EpochStore keeps a number that never falls, also when every Redis node
// forgets. RaiseEpoch makes it greater than above and than each earlier
// result, durably, and returns it.
type EpochStore interface {
	RaiseEpoch(ctx context.Context, above int64) (int64, error)
}

// Node is one independent Redis (or Valkey) server. A replica that a failover
// would promote is not independent of its primary.
type Node struct {
	Name     string // for errors and Status; default: Addr, or MasterName
	Addr     string // host:port, or the path of a Unix socket
	Username string
	Password string
	// Credentials, if set, is asked for user name and password before each login, in
	// place of the two above: for a password that changes. Its error ends the login.
	Credentials func() (username, password string, err error)
	TLS         *tls.Config // nil: none; of the Sentinels too
	DB          int
	// Dialer, if set, connects to the server and its Sentinels, in place of net.Dialer and
	// TLS: what it returns is ready for the first command. ctx bounds it.
	Dialer func(ctx context.Context, network, addr string) (net.Conn, error)

	// Durable declares that the server keeps all that it has acknowledged over each restart, and is never restored
	// from a copy: its append-only file is written always. It is for the only node of a group, which is admitted at
	// once after a restart: its own locks bind. Config.Epochs is needed. Each admission looks at the server's settings.
	// Where they are others, where the epoch was raised in between, or where a fence stands above the
	// node's counter, the node is in quarantine as it is without this.
	Durable bool

	// Sentinels, host:port each, instead of Addr: the node is the primary that they
	// call MasterName. A failover counts as the loss of the node: it grants nothing
	// until it is admitted again. The Sentinels' failover must not leave two
	// primaries that grant: set min-replicas-to-write to 1 or more, and
	// min-replicas-max-lag to no more than the Sentinels' down-after-milliseconds.
	Sentinels        []string
	MasterName       string
	SentinelUsername string
	SentinelPassword string // "": the Sentinels ask for none

	client     string // name of the connections, for CLIENT LIST
	bestEffort bool   // of the group
}

// Login is what to log in to the node with; a password of "" is none.
func (n Node) Login() (username, password string, err error) {
	if n.Credentials != nil {
		return n.Credentials()
	}
	return n.Username, n.Password, nil
}

// clientName is a holder's name as CLIENT SETNAME takes it, which knows no blanks.
func clientName(holder string) string {
	return "fencegate:" + strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '_'
		}
		return r
	}, holder)
}

// Config says how a [Locker] works. Only Nodes is required.
type Config struct {
	// Nodes: 1, 3, 5, 7… independent Redis servers. All lockers of a group
	// must list the same nodes. Two are refused: both are required for a quorum. Four
	// tolerate no more failures than three.
	Nodes []Node
	// Armer, if set, raises the fence as the last step of each acquisition:
	// tokens are then unique and rising under any loss of Redis data. Where it is a
	// [leasing.Ender] too, it ends the grant of each lease that is released. A
	// pgfence.Fence is both.
	Armer leasing.Armer
	// Epochs, if set, keeps the epoch of lost nodes that are admitted again, and where it is a
	// [LongestStore], which a pgfence.Fence is, the longest TTL in use: set it in all lockers of a
	// group, or in none. With an
	// Armer as well that happens by itself after the quarantine; without, by
	// [Locker.Admit]. With neither, three nodes or more keep it themselves.
	Epochs EpochStore
	// MaxTTL is the longest TTL that is allowed, and how long a node that lost data is in
	// quarantine where nothing better is known: neither what other nodes say, nor the longest TTL
	// in use. Set the same in all lockers of a group. Default 5 min.
	MaxTTL time.Duration
	// DefaultTTL is used where [WithTTL] is not given. A longer one is recorded first, where
	// Epochs is a [LongestStore]. Default 30 s, or MaxTTL where that is shorter.
	DefaultTTL time.Duration
	// NodeTimeout is for how long a node may be silent before a step gives it up,
	// whatever the TTL. Time in which this process did not run does not count. An
	// extension gives it a second at least. No round of messages counts an answer later
	// than a second after its first one. Default 50 ms.
	NodeTimeout time.Duration
	// DriftFactor is the share of the TTL that clocks may drift apart, 0 to 0.5. The
	// margin is TTL × DriftFactor + 2 ms. Default 0.01.
	DriftFactor float64
	// KeyPrefix starts the name of each key. Default "fencegate".
	KeyPrefix string
	// Holder names this process for people. Default host:pid.
	Holder string
	// Embedded says that the nodes live and die with every lease on them (in
	// one process, in memory), so they need no quarantine.
	Embedded bool
	// BestEffort chooses availability over exclusion: a node that lost its data or its run,
	// a failover too, is admitted at once, without a quarantine. Two may hold a resource
	// then, until the older lease ends, and the fence lets only the newest write. Needs an
	// Armer. The nodes are marked for it when they are admitted, and refuse Lockers of the
	// other mode ([ErrMode]); [Locker.Mark] changes a group that is in use. Default: false.
	BestEffort bool
	// Logger hears about nodes that are lost and admitted again. Default: silent.
	Logger *slog.Logger
	// Metrics hears what happens. Default: nobody.
	Metrics Metrics
	// Tracer hears of each step of an operation. Default: nobody.
	Tracer Tracer
}

// Validate says what [New] would refuse, without making anything. The error is a [*fence.InvalidError].
func (c Config) Validate() error {
	_, err := c.withDefaults()
	return err
}

// withDefaults fills in defaults and validates.
func (c Config) withDefaults() (Config, error) {
	c.MaxTTL = cmp.Or(c.MaxTTL, DefaultMaxTTL)
	c.DefaultTTL = cmp.Or(c.DefaultTTL, min(DefaultTTL, c.MaxTTL))
	c.NodeTimeout = cmp.Or(c.NodeTimeout, DefaultNodeTimeout)
	c.DriftFactor = cmp.Or(c.DriftFactor, DefaultDriftFactor)
	c.KeyPrefix = cmp.Or(c.KeyPrefix, DefaultKeyPrefix)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = noMetrics{}
	}
	if c.Holder == "" {
		host, _ := os.Hostname()
		c.Holder = fmt.Sprintf("%s:%d", cmp.Or(host, "unknown"), os.Getpid())
	}
	switch {
	case len(c.Nodes) == 0:
		return c, &fence.InvalidError{Field: "nodes", Reason: "are missing: give at least one Redis node"}
	case len(c.Nodes) > maxNodes:
		return c, &fence.InvalidError{Field: "nodes", Reason: fmt.Sprintf("are %d; at most %d are supported", len(c.Nodes), maxNodes)}
	case c.MaxTTL < MinTTL || c.MaxTTL > 24*time.Hour:
		return c, &fence.InvalidError{Field: "max ttl", Reason: fmt.Sprintf("is %v; allowed is %v to 24h", c.MaxTTL, MinTTL)}
	case c.NodeTimeout < time.Millisecond:
		return c, &fence.InvalidError{Field: "node timeout", Reason: fmt.Sprintf("is %v; at least 1ms is needed", c.NodeTimeout)}
	case c.BestEffort && c.Armer == nil:
		return c, &fence.InvalidError{Field: "best effort", Reason: "needs an Armer: without a fence two holders at once would both write"}
	case !(c.DriftFactor >= 0 && c.DriftFactor <= 0.5): // nor NaN
		return c, &fence.InvalidError{Field: "drift factor", Reason: fmt.Sprintf("is %v; allowed is 0 to 0.5", c.DriftFactor)}
	}
	if err := c.validateTTL(c.DefaultTTL); err != nil {
		return c, err
	}
	if err := validateHolder(c.Holder); err != nil {
		return c, err
	}
	if err := c.nameNodes(); err != nil {
		return c, err
	}
	if n := c.Nodes[0]; n.Durable && n.watched() || len(c.Nodes) > 1 && slices.ContainsFunc(c.Nodes, func(n Node) bool { return n.Durable }) {
		return c, &fence.InvalidError{Field: "nodes", Reason: "are declared durable; that is for one only node, without Sentinels"}
	}
	if len(c.Nodes) == 2 {
		return c, &fence.InvalidError{Field: "nodes", Reason: "are two, which is not supported: both are required for a quorum; use 1, 3 or 5"}
	}
	return c, nil
}

// maxNodes keeps sets of nodes in one machine word.
const maxNodes = 15

// nameNodes gives each node a name and refuses the same node twice: it would
// count double in a quorum.
func (c *Config) nameNodes() error {
	named := make([]Node, len(c.Nodes))
	names, places := map[string]bool{}, map[string]bool{}
	for i, n := range c.Nodes {
		n.Name = cmp.Or(n.Name, n.Addr, n.MasterName)
		place := n.place()
		switch {
		case n.watched() && (n.Addr != "" || n.MasterName == ""):
			return &fence.InvalidError{Field: "nodes", Reason: fmt.Sprintf("at position %d need Sentinels with MasterName, or Addr", i+1)}
		case !n.watched() && n.MasterName != "":
			return &fence.InvalidError{Field: "nodes", Reason: fmt.Sprintf("at position %d have a MasterName without Sentinels", i+1)}
		case n.Addr == "" && !n.watched():
			return &fence.InvalidError{Field: "nodes", Reason: fmt.Sprintf("hold no address at position %d", i+1)}
		case places[place] || names[n.Name]:
			return &fence.InvalidError{Field: "nodes", Reason: fmt.Sprintf("name %s twice; each must be a server of its own", n.Name)}
		}
		names[n.Name], places[place] = true, true
		n.client, n.bestEffort = clientName(c.Holder), c.BestEffort
		named[i] = n
	}
	c.Nodes = named
	return nil
}

func (n Node) place() string { return fmt.Sprintf("%s/%s/%d", n.Addr, n.MasterName, n.DB) }

// validateTTL reports whether a lease may last that long.
func (c *Config) validateTTL(ttl time.Duration) error {
	switch {
	case ttl <= 0:
		return &fence.InvalidError{Field: "ttl", Reason: fmt.Sprintf("is %v; it must be positive", ttl)}
	case ttl < MinTTL:
		return &fence.InvalidError{Field: "ttl", Reason: fmt.Sprintf("is %v; at least %v is needed", ttl, MinTTL)}
	case ttl > c.MaxTTL:
		return &fence.InvalidError{Field: "ttl", Reason: fmt.Sprintf("is %v; at most %v is allowed", ttl, c.MaxTTL)}
	}
	return nil
}

// validateHolder refuses names that an Armer's database or a terminal would choke
// on once the lock is taken.
func validateHolder(name string) error {
	switch {
	case len(name) > maxHolderBytes:
		return &fence.InvalidError{Field: "holder", Reason: fmt.Sprintf("is %d bytes long; at most %d are allowed", len(name), maxHolderBytes)}
	case !utf8.ValidString(name):
		return &fence.InvalidError{Field: "holder", Reason: "is not valid UTF-8"}
	case strings.ContainsFunc(name, unicode.IsControl):
		return &fence.InvalidError{Field: "holder", Reason: "contains a control character"}
	}
	return nil
}
