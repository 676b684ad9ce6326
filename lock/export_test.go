package lock

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fencegate/fencegate/fence/clock/clocktest"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/internal/admission"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// Patient is a node timeout for tests that are not about timeouts.
const Patient = 20 * time.Second

// EndPatience is how long a process may take to end its admission before others begin another one.
const EndPatience = admission.EndPatience

// Recheck is the minimum time between two checks by a waiter. Grace is how long the first of a queue has before
// others try.
const (
	Recheck = recheck / 2
	Grace   = grace
)

// WithClock gives the Lockers of a configuration a clock.
func (c *Config) WithClock() *clocktest.Clock {
	k := clocktest.New()
	c.clock = k.Clock
	return k
}

// Brief allows leases that are shorter than leasing.MinTTL, so that many end in a short time.
func (c *Config) Brief() { c.minTTL = 5 * time.Millisecond }

// Seed has the waits at random depend on the seed, the present moment, who draws (0: nobody in particular), and how many
// it drew at this moment.
func (c *Config) Seed(seed uint64, who func() uint64) {
	type draw struct{ who, n uint64 }
	var mu sync.Mutex
	var at time.Time
	drawn := map[draw]uint64{}
	c.dice = func(n int64) int64 {
		mu.Lock()
		defer mu.Unlock()
		now, d := time.Now(), draw{who(), uint64(n)}
		if !now.Equal(at) {
			at = now
			clear(drawn)
		}
		drawn[d]++
		r := rand.New(rand.NewPCG(seed^d.who<<32^drawn[d]<<16, uint64(now.UnixNano())^d.n))
		return int64(r.Uint64N(d.n))
	}
}

// Unwatched leaves all messages to the calls.
func (c *Config) Unwatched() { c.unwatched = true }

// Saw reports whether a check found the first node admitted.
func Saw(l *Locker) bool { return l.group.Sighted(l.nodes[0]) }

// WithNonces names the incarnations that a configuration's Lockers admit.
func (c *Config) WithNonces(next func() string) { c.nonces = next }

// ErrRace says that another admission of a node came between.
var ErrRace = node.ErrRace

// Validity is how long a lease with these options is valid.
func (l *Locker) Validity(opts ...AcquireOption) time.Duration {
	o, _ := l.options("r", opts)
	return l.validity(o.ttl)
}

// EndQuarantine ends a node's quarantine early.
func (l *Locker) EndQuarantine(ctx context.Context, name string) error {
	n, err := l.group.NodeOf(name)
	if err != nil {
		return err
	}
	c := l.client(n)
	defer c.Close()
	return c.Del(ctx, l.group.Keys.Q).Err()
}

// Waiting is how many callers of this Locker are in line for a resource.
func (l *Locker) Waiting(resource string) int { return l.lines.Of(resource) }

// Attempts is how many times this Locker asked the nodes for a lock.
func (l *Locker) Attempts() int64 { return l.attempts.Load() }

// Home is the index of the node that keeps a resource's queue.
func (l *Locker) Home(resource string) int { return l.home(resource) }

// ConfirmNothing makes phase 2 always succeed without checking the node, in the whole process: a safeguard removed.
// Call it before the nodes are admitted.
func ConfirmNothing() { node.ConfirmText = "-- @NONCE@\nreturn {1}" }

// AdmitAtOnce is Admit without its quarantine: a safeguard removed.
func (l *Locker) AdmitAtOnce(ctx context.Context, name string) error {
	n, err := l.group.NodeOf(name)
	if err != nil {
		return err
	}
	states := l.group.States(ctx)
	nonce := node.NewID()
	if err := n.AdmitBegin(ctx, nonce, 0, 0, states[n.Index]); err != nil {
		return err
	}
	base, err := l.group.NewBase(ctx, states, n)
	if err != nil {
		return err
	}
	group, _ := l.group.Limits(states)
	return n.Admit(ctx, nonce, base, group, l.cfg.Epochs != nil)
}

// Forgive admits a node as if it had lost nothing, with the counters that it has left: the marker's safeguard
// removed.
func (l *Locker) Forgive(ctx context.Context, name string) error {
	n, err := l.group.NodeOf(name)
	if err != nil {
		return err
	}
	st := n.State(ctx)
	if st.Err != nil {
		return st.Err
	}
	nonce := cmp.Or(st.Incarnation, node.NewID())
	if err := n.LoadBound(ctx, nonce); err != nil {
		return err
	}
	c := l.client(n)
	defer c.Close()
	return c.HSet(ctx, l.group.Keys.H, "@incarnation", nonce, "@base", st.Base, "@maxttl", l.group.LongestTTL().Milliseconds(), "@longest", l.group.LongestTTL().Milliseconds()).Err()
}

// Refusal is a node's refusal of an acquisition.
type Refusal struct {
	Holder      string
	PTTL, Floor int64
}

// HeldBy is the holder in the error of a round with these refusals.
func HeldBy(refusals ...Refusal) (holder string, pttl int64) {
	r := &round{}
	for i, f := range refusals {
		r.count(node.Reply{Node: i, Holder: f.Holder, PTTL: f.PTTL, Floor: f.Floor})
	}
	return r.refusal.holder, r.refusal.pttl
}

// Extending reports whether an extension is in progress.
func (h *Lease) Extending() bool { return len(h.s.extending) > 0 }

// Waits is the holder of a resource, as far as this process's line for it knows.
func (l *Locker) Waits(resource string) (holder string) {
	if held, ok := errors.AsType[*leasing.HeldError](l.lines.Why(resource, time.Time{})); ok {
		return held.Holder
	}
	return ""
}

// Begun is an admission that has begun.
type Begun struct {
	admission.Admission

	node string
}

// BeginAdmission makes the first half of Admit. It replaces an overdue admission of another process at once.
func (l *Locker) BeginAdmission(ctx context.Context, name string) (Begun, error) {
	n, err := l.group.NodeOf(name)
	if err != nil {
		return Begun{}, err
	}
	a, err := l.group.Begin(ctx, n)
	if errors.Is(err, admission.ErrOthers) && l.group.EndWait(n) {
		a, err = l.group.Begin(ctx, n)
	}
	return Begun{a, name}, err
}

// EndAdmission makes the second half of Admit.
func (l *Locker) EndAdmission(ctx context.Context, b Begun) error {
	n, err := l.group.NodeOf(b.node)
	if err != nil {
		return err
	}
	return l.group.End(ctx, n, b.Admission)
}

// Aged makes an admission old enough for the other nodes to be asked.
func (l *Locker) Aged(b *Begun) { b.Begun = b.Begun.Add(-2 * l.group.AskAfter()) }

// BeginMaxTTL makes the first half of SetMaxTTL, as a process that dies does.
func (l *Locker) BeginMaxTTL(ctx context.Context, ttl time.Duration) (end func() error, err error) {
	states, change := l.group.Read(ctx), node.NewID()
	err = l.group.LimitAll(ctx, states, change, "begin", ttl)
	return func() error { return l.group.LimitAll(ctx, states, change, "end", ttl) }, err
}

// Longest is the longest TTL that a lease may still have, as each node keeps it.
func (l *Locker) Longest(ctx context.Context) (all []time.Duration) {
	for _, st := range l.group.Read(ctx) {
		all = append(all, st.Limits.Longest)
	}
	return all
}

// SeenMaxTTL is the group's longest TTL that this Locker last saw.
func (l *Locker) SeenMaxTTL() time.Duration { return l.group.LastLimits().Granted }

// BeginInit makes the first half of a first start.
func (l *Locker) BeginInit(ctx context.Context) error {
	states := l.group.States(ctx)
	group, _ := l.group.Limits(states)
	for i, n := range l.nodes {
		if err := n.AdmitBegin(ctx, l.group.NewNonce(), 0, group.Granted, states[i]); err != nil {
			return err
		}
	}
	return nil
}

// client is a Redis client of a node.
func (l *Locker) client(n *node.Node) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: n.Name, Protocol: 2, DisableIdentity: true, DB: l.cfg.Nodes[n.Index].DB,
		Dialer:                     func(ctx context.Context, _, _ string) (net.Conn, error) { return l.cfg.Nodes[n.Index].Dial(ctx) },
		CredentialsProviderContext: func(context.Context) (string, string, error) { return l.cfg.Nodes[n.Index].Login() },
		MaintNotificationsConfig:   &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// SweepEvery makes on average one in so many tries for a lock check whether to sweep. Call it before the first try.
func (l *Locker) SweepEvery(tries int64) { l.group.SweepEvery = tries }

// SourceError is an error of a Locker or a Lease, as its Source has it.
var SourceError = sourceError
