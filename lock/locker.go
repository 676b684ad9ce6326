package lock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
	"github.com/fencegate/fencegate/internal/lifetime"
	"github.com/fencegate/fencegate/lock/internal/admission"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// closeTimeout bounds how long Close waits for calls in progress: an Armer may ignore its context.
const closeTimeout = 2 * time.Second

// Locker acquires leases on resources over a group of Redis nodes. It is safe for concurrent use. Close it when done.
type Locker struct {
	cfg    Config
	group  *admission.Group
	nodes  []*node.Node // of the group
	quorum int
	clock  *clock.Clock
	dice   admission.Dice
	life   *lifetime.Lifetime // of the calls
	lines  leases.Lines
	id     string // identifies this Locker among those that wait
	places atomic.Int64

	attempts atomic.Int64 // phase 1, on all nodes
	leases   atomic.Int64 // leases with a handle in this process
	sessions sync.Map     // the same: *session to its resource
	listener listener
	rounds   sync.Pool
	asking   chan struct{} // holds a value for each acquisition or look that waits for answers
}

func init() { //nolint:gochecknoinits // no call of package admin may come before
	admission.GroupOf = func(locker any) *admission.Group { return locker.(*Locker).group }
}

// New creates a Locker. It does not connect; before the first start of a group call Init of package admin. It checks the
// nodes in the background, about once a second, and with an Armer admits those that were lost.
func New(cfg Config) (*Locker, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	life := lifetime.New(closeTimeout, ErrClosed)
	group := admission.New(cfg.group(), life)
	l := &Locker{
		cfg: cfg, group: group, nodes: group.Nodes, quorum: group.Quorum, clock: cfg.clock, dice: cfg.dice, life: life,
		id: node.NewID(), asking: make(chan struct{}, maxAsking),
	}
	l.listener = listener{l: l}
	return l, nil
}

// Close ends acquisitions and extensions in progress and stops background work, sends what is queued for the nodes,
// and waits for all of it. What an acquisition has taken is given back. An Armer that ignores its context is awaited
// for two seconds at most. Leases stay held until they expire, so release them first. Closing twice is not an error.
func (l *Locker) Close() error {
	return l.life.Close(func() error {
		l.group.Close()
		return nil
	})
}

// acquiring runs an acquisition with a context that also ends with Close, which waits until it has given back what it
// does not keep.
func (l *Locker) acquiring(ctx context.Context, acquire func(context.Context) error) error {
	ctx, done, err := l.life.Open(ctx)
	if err != nil {
		return err
	}
	defer done()
	if err = l.group.AwaitKeys(ctx); err == nil {
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
	if len(r.Owner) != node.OwnerLength {
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
	return ttl - time.Duration(float64(ttl)*l.cfg.DriftFactor) - admission.DriftFloor
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
	err := l.releaseGrant(ctx, ref, nil)
	l.lines.Free(ref.Resource)
	return err
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
	if err := l.group.AwaitKeys(ctx); err != nil {
		return fmt.Errorf("release %q: %w", ref.Resource, err)
	}
	l.endGrant(ctx, ref, sealHash)
	r := l.newRound(node.OpRelease, "release", ref.Resource)
	defer r.drop()
	r.traced(ctx)
	r.send(l.all(), node.Ask{Owner: ref.Owner, Expires: time.Now().Add(l.group.LongestTTL())})
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

// Leases is how many leases this Locker's callers hold. Leases of [Locker.Source] are not included: any process may end
// them.
func (l *Locker) Leases() int { return int(l.leases.Load()) }

// EachLease calls visit with the resource of each of these leases.
func (l *Locker) EachLease(visit func(resource string)) {
	l.sessions.Range(func(_, resource any) bool {
		visit(resource.(string))
		return true
	})
}

// Waiters is how many of this Locker's callers wait for a lease, or are making a try after which they would wait.
func (l *Locker) Waiters() int { return l.lines.Count() }

// Ready reports whether the group can grant leases: nil, or a [*QuorumError] that says which nodes are missing and why.
// degraded says how many nodes take no part, without naming them; "": all do.
func (l *Locker) Ready(ctx context.Context) (degraded string, err error) { return l.group.Ready(ctx) }

// Inspect asks all nodes about resources, each node once, and answers in their order; each node is a member. It is for
// display: the answer may be outdated. The error is a [*fence.InvalidError], or a [*QuorumError] if too few nodes
// answered to decide whether some resource is locked; the inspections then still contain the other nodes' answers.
//
// A resource is locked if one acquisition holds a quorum. Its token is the highest counter, 0 if Redis has no record of
// an acquisition. Each waiter is a Locker, which may have several callers waiting.
func (l *Locker) Inspect(ctx context.Context, resources ...string) ([]leasing.Inspection, error) {
	return l.group.Inspect(ctx, resources...)
}
