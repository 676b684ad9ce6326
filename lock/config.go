package lock

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/internal/admission"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// Defaults of [Config].
const (
	DefaultTTL         = 30 * time.Second
	DefaultMaxTTL      = admission.DefaultMaxTTL
	DefaultNodeTimeout = 50 * time.Millisecond
	DefaultDriftFactor = 0.01
	DefaultKeyPrefix   = "fencegate"
)

// EpochStore keeps a number that never falls, even if every Redis node loses its data. RaiseEpoch durably makes it
// greater than above and than each earlier result, and returns it.
type EpochStore interface {
	RaiseEpoch(ctx context.Context, above int64) (int64, error)
}

// Config configures a [Locker]. Only Nodes is required.
type Config struct {
	// Nodes are 1, 3, 5, 7… independent Redis servers. All lockers of a group must list the same nodes. Two are
	// refused: both would be required for a quorum. Four tolerate no more failures than three.
	Nodes []Node
	// Armer, if set, raises the fence as the last step of each acquisition: tokens are then unique and rising
	// whatever data Redis loses. It also ends the grant of each released lease. A pgfence.Fence is one.
	Armer leasing.Armer
	// Epochs, if set, stores the epoch for nodes that are admitted again; a pgfence.Fence is one. Set it in all lockers
	// of a group, or in none. With an Armer as well, nodes are admitted automatically after the quarantine; without, by
	// an operator (package admin). With neither, three nodes or more keep the epoch themselves.
	Epochs EpochStore
	// MaxTTL is the longest TTL that this Locker uses. The nodes keep the group's longest TTL, which is also the length
	// of the quarantine of a node that lost data, unless the other nodes allow a shorter one: the first start gives them
	// MaxTTL, and SetMaxTTL of package admin changes it. MaxTTL may be shorter than the group's, and is not
	// longer; it is the length of the quarantine if no node is left that keeps the group's. Default: the group's, and
	// 1 min at the first start.
	MaxTTL time.Duration
	// DefaultTTL is used without [WithTTL]. Default 30 s, or MaxTTL if that is shorter.
	DefaultTTL time.Duration
	// NodeTimeout is how long a node may be silent before a step stops waiting for it, whatever the TTL. Time in
	// which this process did not run does not count. An extension gives a node at least a second. No round counts an
	// answer later than a second after its first message. Default 50 ms.
	NodeTimeout time.Duration
	// DriftFactor is the share of the TTL by which clocks may drift apart, 0 to 0.5. The margin is TTL × DriftFactor
	// + 2 ms. Default 0.01.
	DriftFactor float64
	// KeyPrefix returns the prefix of each key. Lockers with different prefixes do not exclude each other. With an Armer
	// use pgfence.KeyPrefix of its database, as gateways do. It is asked until it has answered once; until then every
	// call fails with [leasing.ErrUnavailable]. Default: Prefix("fencegate").
	KeyPrefix func(ctx context.Context) (string, error)
	// Holder is the display name of this process. Default host:pid.
	Holder string
	// Embedded says that the nodes run in this process's memory and end together with every lease on them, so they
	// need no quarantine.
	Embedded bool
	// BestEffort chooses availability over exclusion: a node that lost its data or was restarted, also by a failover,
	// is admitted at once, without a quarantine. Two holders may then have a resource until the older lease ends, and
	// the fence accepts only the newest one's writes. It requires an Armer. The nodes are marked for this mode when
	// they are admitted, and refuse Lockers of the other mode ([ErrMode]); package admin changes the mode of a group
	// in use. Default: false.
	BestEffort bool
	// Logger logs nodes that are lost and admitted again. Default: none.
	Logger *slog.Logger
	// Metrics receives events. Default: none.
	Metrics Metrics
	// Tracer receives each step of an operation. Default: none.
	Tracer Tracer

	clock  *clock.Clock   // of tests
	dice   admission.Dice // of tests; nil: at random
	nonces func() string  // of tests; nil: at random
	minTTL time.Duration  // of tests; 0: leasing.MinTTL

	unwatched bool // of tests: only they send messages
}

// Validate checks the configuration as [New] does. The error is a [*fence.InvalidError].
func (c Config) Validate() error {
	_, err := c.withDefaults()
	return err
}

// withDefaults fills in defaults and validates.
func (c Config) withDefaults() (Config, error) {
	c.DefaultTTL = cmp.Or(c.DefaultTTL, min(DefaultTTL, cmp.Or(c.MaxTTL, DefaultTTL)))
	c.NodeTimeout = cmp.Or(c.NodeTimeout, DefaultNodeTimeout)
	c.minTTL = cmp.Or(c.minTTL, leasing.MinTTL)
	c.DriftFactor = cmp.Or(c.DriftFactor, DefaultDriftFactor)
	c.clock = cmp.Or(c.clock, clock.New())
	if c.dice == nil {
		c.dice = rand.Int64N
	}
	if c.KeyPrefix == nil {
		c.KeyPrefix = Prefix("")
	}
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
	case c.NodeTimeout < time.Millisecond:
		return c, &fence.InvalidError{Field: "node timeout", Reason: fmt.Sprintf("is %v; at least 1ms is needed", c.NodeTimeout)}
	case c.BestEffort && c.Armer == nil:
		return c, &fence.InvalidError{Field: "best effort", Reason: "needs an Armer: without a fence two holders at once would both write"}
	case !(c.DriftFactor >= 0 && c.DriftFactor <= 0.5): // also refuses NaN
		return c, &fence.InvalidError{Field: "drift factor", Reason: fmt.Sprintf("is %v; allowed is 0 to 0.5", c.DriftFactor)}
	}
	if c.MaxTTL != 0 {
		if err := admission.ValidateMaxTTL(c.MaxTTL, c.minTTL); err != nil {
			return c, err
		}
	}
	if err := c.validateTTL(c.DefaultTTL); err != nil {
		return c, err
	}
	if err := leasing.ValidateHolder(c.Holder); err != nil {
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

// group is the configuration of the group.
func (c *Config) group() admission.Config {
	group := admission.Config{
		NodeTimeout: c.NodeTimeout, MaxTTL: c.MaxTTL, MinTTL: c.minTTL, DriftFactor: c.DriftFactor, KeyPrefix: c.KeyPrefix,
		Armer: c.Armer, Epochs: c.Epochs, Embedded: c.Embedded, BestEffort: c.BestEffort, Logger: c.Logger,
		Clock: c.clock, Dice: c.dice, Nonces: c.nonces, Unwatched: c.unwatched,
	}
	for _, n := range c.Nodes {
		group.Nodes = append(group.Nodes, node.Server{
			Name: n.Name, Addr: n.Addr, DB: n.DB, Dial: n.Dial, Login: n.Login, Client: clientName(c.Holder),
			Watched: n.watched(), Durable: n.Durable, BestEffort: c.BestEffort,
		})
	}
	return group
}

// maxNodes keeps sets of nodes in one machine word.
const maxNodes = 15

// nameNodes gives each node a name and refuses duplicate nodes, which would count twice in a quorum.
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
		named[i] = n
	}
	c.Nodes = named
	return nil
}

func (n Node) place() string { return fmt.Sprintf("%s/%s/%d", n.Addr, n.MasterName, n.DB) }

// validateTTL reports whether a lease may last that long.
func (c *Config) validateTTL(ttl time.Duration) error {
	return leasing.ValidateTTL(ttl, c.minTTL, c.longest())
}

// longest is the longest TTL that this Locker uses.
func (c *Config) longest() time.Duration { return cmp.Or(c.MaxTTL, admission.MaxMaxTTL) }

// Prefix is a [Config.KeyPrefix] that is known. "" is [DefaultKeyPrefix].
func Prefix(prefix string) func(context.Context) (string, error) {
	if prefix == "" {
		prefix = DefaultKeyPrefix
	}
	return func(context.Context) (string, error) { return prefix, nil }
}
