package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Locker acquires leases on resources over a group of Redis nodes. It is safe
// for concurrent use. Close it when done.
type Locker struct {
	cfg    Config
	keys   keys
	nodes  []*node
	quorum int
	lines  lines

	ctx        context.Context // ends with Close
	stop       context.CancelFunc
	background sync.WaitGroup
	mu         sync.Mutex
	closed     bool
	admitting  map[int]bool // nodes that a background admission looks after
}

// New makes a Locker. It connects to no node yet; before the first start of a
// group call [Locker.Init].
func New(cfg Config) (*Locker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Locker{
		cfg:       cfg,
		keys:      newKeys(cfg.KeyPrefix),
		quorum:    len(cfg.Nodes)/2 + 1,
		admitting: make(map[int]bool),
	}
	l.ctx, l.stop = context.WithCancel(context.Background())
	for i, n := range cfg.Nodes {
		l.nodes = append(l.nodes, newNode(n, i, l.keys, cfg.NodeTimeout, l.nodeLost))
	}
	return l, nil
}

// Close gives up background work, sends what is already on its way to the
// nodes, and waits for both. Leases that are held stay held until they expire:
// release them first. Closing twice is fine.
func (l *Locker) Close() error {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	l.mu.Unlock()
	if !first {
		return nil
	}
	l.stop()
	l.background.Wait()
	var nodes sync.WaitGroup
	for _, n := range l.nodes {
		nodes.Go(n.close)
	}
	nodes.Wait()
	return nil
}

// Ref names an acquisition, so that any process can extend or release it. It
// holds no seal: it gives the power to end a lease, not to write under it.
type Ref struct {
	Resource string
	Owner    string // 128-bit id, 32 hexadecimal digits
	Token    fence.Token
}

// Validate reports whether the reference could be one. The error is a
// [*fence.InvalidError].
func (r Ref) Validate() error {
	if err := fence.ValidateResource(r.Resource); err != nil {
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

// validity is how long a TTL is good for, less the safety margin.
func (l *Locker) validity(ttl time.Duration) time.Duration {
	return ttl - time.Duration(float64(ttl)*l.cfg.DriftFactor) - driftFloor
}

// round is one step of an operation on several nodes: it collects replies
// until it is decided.
type round struct {
	l         *Locker
	operation string
	resource  string
	ops       []op
	causes    []*NodeError
	pending   uint32 // nodes that have not answered, one bit each
}

// all is the set of all nodes.
func (l *Locker) all() uint32 { return 1<<len(l.nodes) - 1 }

// run sends template to the nodes in the set and calls decide with each answer
// until it returns true, all have answered, or the node timeout is over. The
// nodes that are then still silent are in r.pending.
func (r *round) run(ctx context.Context, template *op, set uint32, decide func(reply) bool) error {
	l := r.l
	replies := make(chan reply, len(l.nodes))
	if r.ops == nil {
		r.ops = make([]op, len(l.nodes))
	}
	for i, n := range l.nodes {
		if set&(1<<i) == 0 {
			continue
		}
		o := &r.ops[i]
		o.kind, o.key, o.field = template.kind, template.key, template.field
		o.owner, o.holder, o.ttl, o.n = template.owner, template.holder, template.ttl, template.n
		o.expires, o.node, o.reply = template.expires, i, replies
		r.pending |= 1 << i
		n.submit(o)
	}
	timer := time.NewTimer(l.cfg.NodeTimeout)
	defer timer.Stop()
	for r.pending != 0 {
		select {
		case rep := <-replies:
			r.pending &^= 1 << rep.node
			if rep.err != nil {
				r.cause(rep.node, rep.err)
			}
			if decide(rep) {
				return nil
			}
		case <-timer.C:
			for i := range l.nodes {
				if r.pending&(1<<i) != 0 {
					l.cfg.Metrics.Slow(l.nodes[i].name)
					r.cause(i, ErrNodeTimeout)
				}
			}
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (r *round) cause(node int, err error) {
	r.causes = append(r.causes, &NodeError{Node: r.l.nodes[node].name, Err: err})
}

// noQuorum says why the round failed.
func (r *round) noQuorum() error {
	return &QuorumError{
		Operation: r.operation,
		Resource:  r.resource,
		Nodes:     len(r.l.nodes),
		Quorum:    r.l.quorum,
		Causes:    r.causes,
	}
}

// giveBack sends a compare-and-delete to the nodes in the set, behind whatever
// is already on its way to them, and waits for nobody.
func (l *Locker) giveBack(resource, owner string, ttl time.Duration, set uint32) {
	key := l.keys.lock(resource)
	expires := time.Now().Add(ttl) // after that the locks are gone by themselves
	for i, n := range l.nodes {
		if set&(1<<i) != 0 {
			n.submit(&op{kind: opRelease, key: key, owner: owner, expires: expires, node: i})
		}
	}
}

// Extend gives a lease a new TTL, counted from now, without its [Lease]: any
// process can, by the reference. It returns how long the lease is valid from
// now on. It never re-creates a lock that is gone: that is [ErrLost].
//
// Without a quorum ([ErrNoQuorum]) the lease may still be valid until its old
// deadline, or until now + ttl where that is sooner.
func (l *Locker) Extend(ctx context.Context, ref Ref, ttl time.Duration) (time.Duration, error) {
	deadline, err := l.extend(ctx, ref, ttl)
	if err != nil {
		return 0, err
	}
	return deadline.left(), nil
}

func (l *Locker) extend(ctx context.Context, ref Ref, ttl time.Duration) (instant, error) {
	deadline, err := l.extendOnce(ctx, ref, ttl)
	if err != nil {
		l.cfg.Metrics.Failed("extend", cause(err))
		return instant{}, err
	}
	l.cfg.Metrics.Renewed()
	return deadline, nil
}

func (l *Locker) extendOnce(ctx context.Context, ref Ref, ttl time.Duration) (instant, error) {
	if err := ref.Validate(); err != nil {
		return instant{}, err
	}
	if err := l.cfg.validateTTL(ttl); err != nil {
		return instant{}, err
	}
	start := now()
	ttl = ttl.Truncate(time.Millisecond)
	deadline := start.add(l.validity(ttl))
	template := op{
		kind: opExtend, key: l.keys.lock(ref.Resource), owner: ref.Owner,
		ttl: ttl.Milliseconds(), expires: start.mono.Add(l.cfg.NodeTimeout),
	}
	r := round{l: l, operation: "extend", resource: ref.Resource}
	extended, lost := 0, 0
	var maxTTL int64
	err := r.run(ctx, &template, l.all(), func(rep reply) bool {
		switch {
		case rep.err != nil:
		case rep.n > 0:
			extended++
		case rep.n == codeMaxTTL:
			maxTTL = rep.pttl
		default:
			lost++
		}
		return extended >= l.quorum || lost > len(l.nodes)-l.quorum
	})
	switch {
	case err != nil:
		return instant{}, fmt.Errorf("extend %q: %w", ref.Resource, errors.Join(fence.ErrUnknown, err))
	case extended >= l.quorum && !deadline.passed():
		return deadline, nil
	case maxTTL > 0:
		return instant{}, overNodeMax(ttl, maxTTL)
	case extended >= l.quorum, lost > len(l.nodes)-l.quorum:
		return instant{}, fmt.Errorf("extend %q: %w", ref.Resource, ErrLost)
	}
	return instant{}, r.noQuorum()
}

func overNodeMax(ttl time.Duration, maxMS int64) error {
	return &fence.InvalidError{Field: "ttl", Reason: fmt.Sprintf("is %v; the nodes were admitted for at most %v",
		ttl, time.Duration(maxMS)*time.Millisecond)}
}

// releaseTimeout bounds a release, which does not end with the caller's context.
const releaseTimeout = 2 * time.Second

// Release gives a lease back by its reference: compare-and-delete on all nodes.
// It goes on when ctx ends, on a bound of its own. nil: a quorum no longer
// holds the lock, and it was held until now. [ErrLost]: it was already gone.
// [ErrNoQuorum]: it expires by itself at the latest.
func (l *Locker) Release(ctx context.Context, ref Ref) error {
	err := l.release(ctx, ref)
	if err != nil {
		l.cfg.Metrics.Failed("release", cause(err))
	}
	return err
}

func (l *Locker) release(ctx context.Context, ref Ref) error {
	if err := ref.Validate(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	template := op{
		kind: opRelease, key: l.keys.lock(ref.Resource), owner: ref.Owner,
		expires: time.Now().Add(l.cfg.MaxTTL),
	}
	r := round{l: l, operation: "release", resource: ref.Resource}
	deleted, absent := 0, 0
	err := r.run(ctx, &template, l.all(), func(rep reply) bool {
		switch {
		case rep.err != nil:
		case rep.n > 0:
			deleted++
		default:
			absent++
		}
		return deleted >= l.quorum || absent > len(l.nodes)-l.quorum
	})
	switch {
	case err != nil:
		return fmt.Errorf("release %q: %w", ref.Resource, errors.Join(fence.ErrUnknown, err))
	case deleted >= l.quorum:
		return nil
	case absent > len(l.nodes)-l.quorum:
		return fmt.Errorf("release %q: %w", ref.Resource, ErrLost)
	case deleted+absent >= l.quorum:
		return nil // some nodes never granted it; a quorum is free of it
	}
	return r.noQuorum()
}
