// Package admission looks after the nodes of a group: which of them grant leases, in which epoch, and for how long at
// most. It admits new nodes and those that lost their data, and finds the lost ones.
//
// The guarantee: a node grants nothing before every lease that it may have granted in an earlier incarnation is over,
// and every later token that needs it is higher than those before.
package admission

import (
	"context"
	"errors"
	"fmt"
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

	mu         sync.Mutex
	sweeping   bool
	raise      raise
	admissions map[int]bool      // nodes that a background admission looks after
	begun      map[int]Admission // own admissions that an error stopped, by node
	overdue    map[int]overdue   // others' admissions that are over, by node
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
		admissions: make(map[int]bool),
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

const (
	// prefixTimeout bounds one question for the prefix.
	prefixTimeout = 3 * time.Second
	// remindEvery is how often the log repeats that it is not known.
	remindEvery = time.Minute
)

// naming is the state of the keys' prefix.
type naming struct {
	known  chan struct{} // closed once the keys have their names
	failed chan struct{} // closed once a question has failed
	mu     sync.Mutex
	err    error // of the last question
}

// prefixError says why the prefix is not known yet. It is a [leasing.ErrUnavailable].
type prefixError struct{ err error }

func (e *prefixError) Error() string {
	return fmt.Sprintf("the prefix of the keys is not known yet: %v", e.err)
}

func (e *prefixError) Is(target error) bool { return target == leasing.ErrUnavailable }

func (e *prefixError) Unwrap() error { return e.err }

// name gives the keys their names if the prefix is known without a question, and otherwise asks in the background.
func (g *Group) name() {
	g.naming.known, g.naming.failed = make(chan struct{}), make(chan struct{})
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if prefix, err := g.cfg.KeyPrefix(ended); err == nil {
		g.setPrefix(prefix)
		return
	}
	g.life.InBackground(func(context.Context) { g.learn() })
}

func (g *Group) setPrefix(prefix string) {
	*g.Keys = node.NewKeys(prefix)
	close(g.naming.known)
}

// learn asks for the prefix until it is known, or the Locker is closed.
func (g *Group) learn() {
	var said time.Time
	failed := sync.OnceFunc(func() { close(g.naming.failed) })
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		ctx, cancel := context.WithTimeout(g.ctx, prefixTimeout)
		prefix, err := g.cfg.KeyPrefix(ctx)
		cancel()
		if err == nil {
			g.cfg.Logger.Info("the prefix of the Redis keys is known", "prefix", prefix)
			g.setPrefix(prefix)
			return
		}
		g.naming.mu.Lock()
		g.naming.err = err
		g.naming.mu.Unlock()
		failed()
		if time.Since(said) >= remindEvery && g.ctx.Err() == nil {
			said = time.Now()
			g.cfg.Logger.Warn("no leases are granted yet: the prefix of the Redis keys is not known", "error", err)
		}
		if Pause(g.ctx, wait) != nil {
			return
		}
	}
}

// AwaitKeys returns once the prefix is known. It fails once a question for it has failed; the next one may be answered.
func (g *Group) AwaitKeys(ctx context.Context) error {
	select {
	case <-g.naming.known:
		return nil
	default:
	}
	select {
	case <-g.naming.known:
		return nil
	case <-g.naming.failed:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-g.ctx.Done():
		return leasing.ErrClosed
	}
	select {
	case <-g.naming.known:
		return nil
	default:
	}
	g.naming.mu.Lock()
	defer g.naming.mu.Unlock()
	return &prefixError{g.naming.err}
}

// IsUnkeyed reports whether an error says that the prefix is not known yet.
func IsUnkeyed(err error) bool {
	_, ok := errors.AsType[*prefixError](err)
	return ok
}

// NewNonce creates the name of a new incarnation in this Locker's mode.
func (g *Group) NewNonce() string {
	if g.cfg.Nonces != nil {
		return node.NonceOf(g.cfg.BestEffort, g.cfg.Nonces())
	}
	return node.NewNonce(g.cfg.BestEffort)
}

// inOtherMode is the error of a node that is marked for the other mode: no node of its group is admitted beside it.
func inOtherMode(states []node.State) error {
	for _, st := range states {
		if errors.Is(st.Err, node.ErrMode) {
			return st.Err
		}
	}
	return nil
}

// admittedWhen is text for the log.
func (c *Config) admittedWhen() string {
	if c.Embedded || c.BestEffort {
		return "it is admitted"
	}
	return "its quarantine is over"
}

// errUnused: the nodes of a new group take the mode of the Locker that admits them.
var errUnused = errors.New("no node was admitted yet: new nodes take the mode of the process that admits them")

// Mark is admin.Admin.Mark.
func (g *Group) Mark(ctx context.Context, bestEffort bool) error {
	if err := g.AwaitKeys(ctx); err != nil {
		return err
	}
	states := g.Read(ctx)
	used := false
	for _, st := range states {
		used = used || st.Incarnation != ""
	}
	errs := make([]error, len(g.Nodes))
	g.each(func(i int, n *node.Node) {
		if errs[i] = states[i].Err; errs[i] == nil && used {
			errs[i] = n.Mark(ctx, states[i].Incarnation, bestEffort)
		}
		if errs[i] != nil {
			errs[i] = &node.NodeError{Node: n.Name, Err: errs[i]}
		}
	})
	err := errors.Join(errs...)
	if err == nil && !used {
		err = errUnused
	}
	return err
}

func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Dice draws how long to wait at random: a number from 0, and less than n.
type Dice func(n int64) int64

// Random is a random time from 0, and less than d.
func (r Dice) Random(d time.Duration) time.Duration { return time.Duration(r(int64(d))) }

// jitter is a random wait between two tries that all processes may make.
func (r Dice) jitter() time.Duration { return 50*time.Millisecond + r.Random(200*time.Millisecond) }

// Between is a random time that grows with the number of failures.
func (r Dice) Between(first, most time.Duration, failed int) time.Duration {
	longest := min(first<<min(failed, 10), most)
	return longest/2 + r.Random(longest/2+1)
}
