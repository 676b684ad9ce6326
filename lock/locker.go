package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
	"github.com/fencegate/fencegate/internal/lifetime"
)

// closeTimeout bounds how long Close waits for calls in progress: an Armer may ignore its context.
const closeTimeout = 2 * time.Second

// Locker acquires leases on resources over a group of Redis nodes. It is safe
// for concurrent use. Close it when done.
type Locker struct {
	cfg    Config
	keys   *keys // of the nodes too; empty until the prefix is known
	naming naming
	nodes  []*node
	quorum int
	clock  *clock.Clock
	dice   dice
	lines  leases.Lines
	id     string // identifies this Locker among those that wait
	places atomic.Int64

	inits      atomic.Int64 // calls of Init
	initing    atomic.Int64 // calls of Init in progress
	attempts   atomic.Int64 // phase 1, on all nodes
	held       atomic.Int64 // leases with a handle in this process
	sessions   sync.Map     // the same: *session to its resource
	sweepEvery int64        // average number of tries between two checks
	listener   listener
	rounds     sync.Pool
	asking     chan struct{}          // holds a value for each acquisition or look that waits for answers
	noted      atomic.Pointer[limits] // of the group, by the last look at its nodes; nil: none

	life       *lifetime.Lifetime // of the calls
	ctx        context.Context    // ends with Close
	background sync.WaitGroup
	mu         sync.Mutex
	closed     bool // no more background work is started: Close has waited for the calls
	sweeping   bool
	raise      raise
	admitting  map[int]bool      // nodes that a background admission looks after
	begun      map[int]admission // own admissions that an error stopped, by node
	overdue    map[int]overdue   // others' admissions that are over, by node
}

// New creates a Locker. It does not connect; before the first start of a group call [Locker.Init]. It checks the nodes
// in the background, about once a second, and with an Armer admits those that were lost.
func New(cfg Config) (*Locker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Locker{
		cfg:       cfg,
		keys:      &keys{},
		clock:     cmp.Or(cfg.clock, clock.New()),
		dice:      cfg.dice,
		id:        newID(),
		quorum:    len(cfg.Nodes)/2 + 1,
		admitting: make(map[int]bool),
		begun:     make(map[int]admission),
		overdue:   make(map[int]overdue),
		raise:     raise{turn: make(chan struct{}, 1)},
		asking:    make(chan struct{}, maxAsking),

		sweepEvery: sweepEvery,
	}
	if l.dice == nil {
		l.dice = rand.Int64N
	}
	l.life = lifetime.New(closeTimeout, ErrClosed)
	l.ctx = l.life.Calls
	for i, n := range cfg.Nodes {
		l.nodes = append(l.nodes, newNode(n, i, l.keys, cfg.NodeTimeout, l.nodeLost))
	}
	if len(l.nodes) == 1 {
		l.nodes[0].double()
	}
	l.name()
	if !cfg.unwatched {
		l.background.Go(l.watch)
	}
	return l, nil
}

// Close ends acquisitions and extensions in progress and stops background work, sends what is queued for the nodes,
// and waits for all of it. What an acquisition has taken is given back. An Armer that ignores its context is awaited
// for two seconds at most. Leases stay held until they expire, so release them first. Closing twice is not an error.
func (l *Locker) Close() error { return l.life.Close(l.closeNodes) }

// closeNodes waits for the background and closes the nodes.
func (l *Locker) closeNodes() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.background.Wait()
	var nodes sync.WaitGroup
	for _, n := range l.nodes {
		nodes.Go(n.close)
	}
	nodes.Wait()
	return nil
}

// acquiring runs an acquisition with a context that also ends with Close, which waits until it has given back what it
// does not keep.
func (l *Locker) acquiring(ctx context.Context, acquire func(context.Context) error) error {
	ctx, done, err := l.life.Open(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err = l.keyed(ctx); err == nil {
		err = acquire(ctx)
	}
	if err != nil && !errors.Is(err, ErrClosed) && errors.Is(context.Cause(ctx), ErrClosed) {
		return fmt.Errorf("%w: %w", err, ErrClosed) // an Armer may say only that its context has ended
	}
	return err
}

// validateRef checks the form of a reference: its owner is a 128-bit ID, 32 hexadecimal digits. The error is a
// [*fence.InvalidError].
func validateRef(r leasing.Ref) error {
	if err := r.Validate(); err != nil {
		return err
	}
	if len(r.Owner) != ownerLength {
		return &fence.InvalidError{Field: "owner", Reason: "is not a 128-bit id in hexadecimal"}
	}
	for _, c := range []byte(r.Owner) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return &fence.InvalidError{Field: "owner", Reason: "is not a 128-bit id in hexadecimal"}
		}
	}
	return nil
}

// validity is the TTL less the safety margin.
func (l *Locker) validity(ttl time.Duration) time.Duration {
	return ttl - time.Duration(float64(ttl)*l.cfg.DriftFactor) - driftFloor
}

// all is the set of all nodes.
func (l *Locker) all() uint32 { return 1<<len(l.nodes) - 1 }

// Release gives a lease back by its reference. With an Armer the fence first ends the grant,
// within at most 500 ms. If the fence is unavailable, the grant stays current until the next acquisition, and this is
// logged. Then Release frees the lock by compare-and-delete on all nodes. It continues when ctx ends; the node
// timeout bounds it.
//
// nil: a quorum no longer holds the lock, and it was held until now. (If a connection was lost before the answer
// came, the release is sent again, and nil says only that the lock is gone.) [ErrLost]: it was already gone.
// [ErrNoQuorum]: the release is sent to the missing nodes when they can be reached again, and the lock expires at the
// latest.
func (l *Locker) Release(ctx context.Context, ref leasing.Ref) error {
	return l.releaseGrant(ctx, ref, nil)
}

// releaseGrant is Release of a grant whose seal hash is known; nil: unknown.
func (l *Locker) releaseGrant(ctx context.Context, ref leasing.Ref, sealHash []byte) error {
	ctx, end := l.begin(ctx, "release", ref.Resource)
	err := l.release(ctx, ref, sealHash)
	end(err)
	if err != nil {
		l.cfg.Metrics.Failed("release", cause(err))
	}
	return err
}

func (l *Locker) release(ctx context.Context, ref leasing.Ref, sealHash []byte) error {
	if err := validateRef(ref); err != nil {
		return err
	}
	ctx, done, err := l.life.Open(context.WithoutCancel(ctx))
	if err != nil {
		return fmt.Errorf("release %q: %w", ref.Resource, err)
	}
	defer done()
	if err := l.keyed(ctx); err != nil {
		return fmt.Errorf("release %q: %w", ref.Resource, err)
	}
	l.endGrant(ctx, ref, sealHash)
	r := l.newRound(opRelease, "release", ref.Resource)
	defer r.drop()
	r.traced(ctx)
	r.send(l.all(), ask{owner: ref.Owner, expires: time.Now().Add(l.longestTTL())})
	_ = r.wait(context.WithoutCancel(ctx)) // the node timeout bounds it; Close waits for it
	switch {
	case r.yes >= l.quorum:
		return nil
	case r.no > len(l.nodes)-l.quorum:
		return fmt.Errorf("release %q: %w", ref.Resource, ErrLost)
	case r.yes+r.no >= l.quorum:
		return nil // some nodes never granted it; a quorum does not hold it
	}
	return r.noQuorum()
}
