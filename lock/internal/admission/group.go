// Package admission looks after the nodes of a group: which of them grant leases, in which epoch, and for how long at
// most. It admits new nodes and those that lost their data, and finds the lost ones.
//
// The guarantee: a node grants nothing before every lease that it may have granted in an earlier incarnation is over,
// and every later token that needs it is higher than those before.
package admission

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/lifetime"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// DriftFloor is the fixed part of the safety margin: Redis counts in whole milliseconds.
const DriftFloor = 2 * time.Millisecond

// GroupOf returns the group of a *lock.Locker. Package lock sets it; package admin, whose types lock does not know, uses
// the group's connections.
var GroupOf func(locker any) *Group

// Config configures a [Group]. Package lock validates it; its Config describes the fields.
type Config struct {
	Nodes       []node.Server
	NodeTimeout time.Duration
	MaxTTL      time.Duration // 0: the group's
	MinTTL      time.Duration
	DriftFactor float64
	KeyPrefix   func(ctx context.Context) (string, error)
	Armer       leasing.Armer // nil: none
	Epochs      EpochStore    // nil: none
	Embedded    bool
	BestEffort  bool
	Logger      *slog.Logger

	Clock     *clock.Clock
	Dice      Dice
	Nonces    func() string // names incarnations; nil: at random
	Unwatched bool          // no check runs by itself
}

// EpochStore is lock.EpochStore.
type EpochStore interface {
	RaiseEpoch(ctx context.Context, above int64) (int64, error)
}

// Group is a process's view of the nodes of a group. It is safe for concurrent use.
type Group struct {
	cfg    Config
	Keys   *node.Keys // of the nodes too; empty until the prefix is known
	naming naming
	Nodes  []*node.Node
	Quorum int
	life   *lifetime.Lifetime
	ctx    context.Context // ends when the Locker is closed

	SweepEvery int64                       // average number of tries between two checks
	noted      atomic.Pointer[node.Limits] // of the group, by the last look at its nodes; nil: none
	sights     []atomic.Pointer[sight]     // by node
	changes    []atomic.Pointer[change]    // by node

	inits   atomic.Int64 // calls of Init
	initing atomic.Int64 // calls of Init in progress

	mu        sync.Mutex
	sweeping  bool
	raise     raise
	admitting map[int]bool      // nodes that a background admission looks after
	begun     map[int]Admission // own admissions that an error stopped, by node
	overdue   map[int]overdue   // others' admissions that are over, by node
}

// New creates a group. It does not connect. It checks the nodes in the background, about once a second, and with an
// Armer admits those that were lost, until life ends; then call Close.
func New(cfg Config, life *lifetime.Lifetime) *Group {
	g := &Group{
		cfg:        cfg,
		Keys:       &node.Keys{},
		Quorum:     len(cfg.Nodes)/2 + 1,
		life:       life,
		ctx:        life.Calls,
		SweepEvery: sweepEvery,
		sights:     make([]atomic.Pointer[sight], len(cfg.Nodes)),
		changes:    make([]atomic.Pointer[change], len(cfg.Nodes)),
		admitting:  make(map[int]bool),
		begun:      make(map[int]Admission),
		overdue:    make(map[int]overdue),
		raise:      raise{turn: make(chan struct{}, 1)},
	}
	for i, s := range cfg.Nodes {
		g.Nodes = append(g.Nodes, node.New(s, i, g.Keys, cfg.NodeTimeout, g.nodeLost))
	}
	if len(g.Nodes) == 1 {
		g.Nodes[0].Double()
	}
	g.name()
	if !cfg.Unwatched {
		life.InBackground(func(context.Context) { g.watch() })
	}
	return g
}

// Close sends what is queued for the nodes, and closes the connections to them.
func (g *Group) Close() {
	g.each(func(_ int, n *node.Node) { n.Close() })
}

// each calls do for all nodes at once.
func (g *Group) each(do func(i int, n *node.Node)) {
	var all sync.WaitGroup
	for i, n := range g.Nodes {
		all.Go(func() { do(i, n) })
	}
	all.Wait()
}

// Arms reports whether acquisitions raise a fence.
func (g *Group) Arms() bool { return g.cfg.Armer != nil }

// QuorumError builds the error of an operation without a quorum.
func (g *Group) QuorumError(operation, resource string, causes []*node.NodeError) *QuorumError {
	out := 0
	for _, c := range causes {
		if errors.Is(c, node.ErrQuarantined) {
			out++
		}
	}
	return &QuorumError{
		Operation: operation, Resource: resource, Nodes: len(g.Nodes), Quorum: g.Quorum, Causes: causes,
		NeedsAdmission: out > len(g.Nodes)-g.Quorum && !g.admitsByItself(),
	}
}
