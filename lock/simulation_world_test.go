package lock_test

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock/clocktest"
	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
)

// simPlan is what a seed decides at its start.
type simPlan struct {
	nodes, lockers, resources, steps int

	armed      bool          // the Lockers have an Armer, and admit nodes by themselves; otherwise an operator does
	bestEffort bool          // lost nodes are admitted at once: nothing excludes two holders
	jumps      bool          // clocks of nodes jump by more than the margin: likewise
	calm       bool          // no faults, and fast messages
	maxTTL     time.Duration // of the group
	latency    time.Duration // of most messages, at most
	slow       float64       // share of messages that take up to simSlow
	slower     float64       // share that take up to a second and a half more
	lose       float64       // share that are lost, with their connection
	busy       float64       // share of steps that follow the one before within milliseconds
}

// strict reports whether the plan promises one holder at a time.
func (p simPlan) strict() bool { return !p.bestEffort && !p.jumps }

func draw(r *rand.Rand) simPlan {
	chance := func(p float64) bool { return r.Float64() < p }
	p := simPlan{
		nodes: 3, lockers: 2 + r.IntN(2), resources: 1 + r.IntN(2), steps: 15 + r.IntN(25),
		armed: chance(.5), calm: chance(.2), maxTTL: 8 * time.Second, latency: time.Millisecond, busy: .3 + r.Float64()*.6,
	}
	switch {
	case chance(.08):
		p.nodes, p.steps = 5, p.steps/2
	case p.armed && chance(.08):
		p.nodes = 1
	}
	if chance(.01) {
		p.maxTTL = lock.DefaultMaxTTL
	}
	if p.calm {
		return p
	}
	p.bestEffort, p.jumps = p.armed && chance(.1), chance(.1)
	if chance(.5) {
		p.slow = r.Float64() * .2
	}
	if chance(.5) {
		p.slower = r.Float64() * .03
	}
	if chance(.5) {
		p.lose = r.Float64() * .02
	}
	return p
}

// simMessages is how many messages let a seed end early: callers that find no quorum send many, and show little.
const simMessages = 1200

// simNode is one node with what the simulator does to it.
type simNode struct {
	*memredis.Node

	name   string
	up     bool
	frozen time.Time // until then it takes requests and answers nothing
	loss   *simLoss  // its last one, until it is admitted again
}

// simLoss is the loss of a node's data or run.
type simLoss struct {
	at     time.Time
	before string       // incarnation
	others map[int]bool // that were up and admitted at some time since
}

// simLocker is one process.
type simLocker struct {
	*lock.Locker

	clock     *clocktest.Clock
	cutOff    time.Time // until then its messages stand still
	suspended []suspension
	calls     int // in progress; simCalls: no other may begin
}

// simCalls is how many calls a Locker has at most.
const simCalls = 3

type suspension struct {
	at time.Time
	d  time.Duration
}

// slept is how long the Locker was suspended since.
func (l *simLocker) slept(since time.Time) (d time.Duration) {
	for _, p := range l.suspended {
		if !p.at.Before(since) {
			d += p.d
		}
	}
	return d
}

// simCall is one call of a Locker, in a goroutine of its own.
type simCall struct {
	id        int
	what      string
	locker    int
	resources []string
	ttl       time.Duration
	waits     bool // for one resource, until it has it
	came      time.Time
	bounded   bool // ctx may end first
	cancel    context.CancelFunc
	done      func(*simCall) // in the simulator

	mu       sync.Mutex
	took     map[string]time.Time // when the last phase 1 of a resource began
	attempts map[string]time.Time // when the last attempt began
	waited   bool

	ended  time.Time
	leases []*lock.Lease
	err    error
}

func (c *simCall) begin(step lock.Step) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch step.Name {
	case "take":
		c.took[step.Resource] = time.Now()
	case "attempt":
		c.attempts[step.Resource] = time.Now()
	case "wait":
		c.waited = true
	}
}

// sim is one run.
type sim struct {
	t      *testing.T
	plan   simPlan
	rand   *rand.Rand
	start  time.Time
	events events
	seq    int
	news   chan struct{}

	mu     sync.Mutex // of what the Lockers' goroutines use
	posted []simMessage
	dialed map[simConn]int
	ended  []*simCall

	callers sync.Map // the call that each goroutine makes

	nodes   []*simNode
	lockers []*simLocker
	armer   *simArmer
	epochs  *epochs
	calls   map[int]*simCall
	called  int
	leases  []*simLease // believed to be valid
	flying  int         // messages on their way
	healed  bool
	until   time.Time // faults may have effects until then

	simJudge

	trace  []string
	counts simCounts
	broken string
}

func simulate(t *testing.T, seed uint64) *sim {
	r := rand.New(rand.NewPCG(seed, 42))
	s := &sim{
		t: t, plan: draw(r), rand: r, start: time.Now(), news: make(chan struct{}, 1), dialed: map[simConn]int{},
		calls: map[int]*simCall{}, epochs: &epochs{}, simJudge: newSimJudge(),
	}
	s.armer = &simArmer{s: s, seed: seed}
	for i := range s.plan.nodes {
		s.nodes = append(s.nodes, &simNode{Node: memredis.Start(t), name: fmt.Sprintf("n%d", i), up: true})
	}
	for range s.plan.lockers {
		s.addLocker(seed)
	}
	s.run()
	s.counts.simulated = time.Since(s.start)
	return s
}

func (s *sim) addLocker(seed uint64) {
	at := len(s.lockers)
	cfg := lock.Config{MaxTTL: s.plan.maxTTL, Holder: fmt.Sprintf("l%d", at), Tracer: simTracer{}, BestEffort: s.plan.bestEffort}
	if s.plan.armed {
		cfg.Armer, cfg.Epochs = s.armer, s.epochs
	}
	for i, n := range s.nodes {
		cfg.Nodes = append(cfg.Nodes, lock.Node{Name: n.name, Addr: n.name, Dialer: s.dialer(at, i)})
	}
	clock := cfg.WithClock()
	cfg.Seed(seed<<8+uint64(at), s.caller)
	made := 0
	var mu sync.Mutex
	cfg.WithNonces(func() string { // the same ones in each seed: a node compiles the scripts of each only once
		mu.Lock()
		defer mu.Unlock()
		made++
		return fmt.Sprintf("%016x%016x", at, made)
	})
	l, err := lock.New(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.lockers = append(s.lockers, &simLocker{Locker: l, clock: clock})
}

func (s *sim) run() {
	s.healed = true
	s.call(&simCall{what: "init", done: func(c *simCall) {
		if c.err != nil {
			s.failf("init: %v", c.err)
		}
	}}, func(ctx context.Context, l *lock.Locker, _ *simCall) error { return admin.Of(l).Init(ctx) })
	s.spin(s.idle, time.Second, "the first start has ended")
	s.healed, s.until = false, time.Now()
	for range s.plan.steps {
		if s.broken != "" || s.counts.messages > simMessages {
			break
		}
		s.act()
		s.sleep(s.gap())
	}
	s.heal()
	if s.broken == "" {
		s.quiet()
	}
	s.close()
}

// idle reports whether no call is in progress.
func (s *sim) idle() bool { return len(s.calls) == 0 }

// spin runs the simulation until a state is reached, which has to be within a time.
func (s *sim) spin(ok func() bool, within time.Duration, what string) {
	end := time.Now().Add(within)
	for s.settle(); !ok() && s.broken == ""; s.settle() {
		if !time.Now().Before(end) {
			s.failf("not within %v: %s; pending: %s", within, what, s.pending())
			return
		}
		s.step(end)
	}
}

// sleep runs the simulation for a time.
func (s *sim) sleep(d time.Duration) {
	end := time.Now().Add(d)
	for s.settle(); time.Now().Before(end) && s.broken == ""; s.settle() {
		s.step(end)
	}
}

// settle lets everything happen that can happen now, and looks at it.
func (s *sim) settle() {
	synctest.Wait()
	s.send()
	s.mu.Lock()
	ended := s.ended
	s.ended = nil
	s.mu.Unlock()
	slices.SortFunc(ended, func(a, b *simCall) int { return cmp.Compare(a.id, b.id) })
	for _, c := range ended {
		delete(s.calls, c.id)
		s.lockers[c.locker].calls--
		s.logf("l%d call %d %s ended: %d leases, %s", c.locker, c.id, c.what, len(c.leases), outcomeOf(c.err))
		c.done(c)
	}
	s.judge()
}

// step does the next event that is due by then, or waits for it, for news, or until then.
func (s *sim) step(end time.Time) {
	until := end
	if len(s.events) > 0 && s.events[0].at.Before(until) {
		until = s.events[0].at
	}
	if time.Now().Before(until) {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-s.news:
		}
		return
	}
	if len(s.events) > 0 && !s.events[0].at.After(time.Now()) {
		heap.Pop(&s.events).(event).do()
	}
}

// call starts a call in a goroutine.
func (s *sim) call(c *simCall, do func(context.Context, *lock.Locker, *simCall) error) {
	s.called++
	c.id, c.came = s.called, time.Now()
	c.took, c.attempts = map[string]time.Time{}, map[string]time.Time{}
	if c.done == nil {
		c.done = func(*simCall) {}
	}
	ctx := context.WithValue(context.Background(), simCallKey{}, c)
	ctx, c.cancel = context.WithCancel(ctx)
	s.calls[c.id] = c
	s.lockers[c.locker].calls++
	s.logf("l%d call %d %s %v", c.locker, c.id, c.what, c.resources)
	go func() {
		s.callers.Store(goroutine(), uint64(c.id))
		defer s.callers.Delete(goroutine())
		err := do(ctx, s.lockers[c.locker].Locker, c)
		c.cancel()
		c.err, c.ended = err, time.Now()
		s.mu.Lock()
		s.ended = append(s.ended, c)
		s.mu.Unlock()
		s.notify()
	}()
}

// caller is the call that the present goroutine makes; 0: none.
func (s *sim) caller() uint64 {
	id, _ := s.callers.Load(goroutine())
	who, _ := id.(uint64)
	return who
}

// goroutine names the present goroutine.
func goroutine() string {
	var buf [64]byte
	name, _, _ := strings.Cut(string(buf[:runtime.Stack(buf[:], false)]), " [")
	return name
}

// act does one thing to the group.
func (s *sim) act() {
	if !s.plan.calm && s.chance(.35) {
		if s.chance(.5) { // while messages of a call are on their way
			s.ask()
			s.sleep(s.upTo(2 * s.plan.latency))
		}
		s.fault()
		return
	}
	s.ask()
}

// ask makes a call.
func (s *sim) ask() {
	at := s.rand.IntN(len(s.lockers))
	l := s.lockers[at]
	c := &simCall{locker: at, ttl: s.ttl()}
	resource := fmt.Sprintf("r%d", s.rand.IntN(s.plan.resources))
	c.resources = []string{resource}
	switch x := s.rand.Float64(); {
	case l.calls >= simCalls || len(s.calls) >= 5:
		s.logf("l%d is busy", at)
	case x < .2:
		c.what, c.done = "try", s.acquired
		s.call(c, func(ctx context.Context, l *lock.Locker, c *simCall) error {
			return c.take(l.TryAcquire(ctx, c.resources[0], lock.WithTTL(c.ttl)))
		})
	case x < .75:
		c.what, c.done, c.waits = "acquire", s.acquired, true
		opts := []lock.AcquireOption{lock.WithTTL(c.ttl)}
		if s.chance(.4) {
			c.what = "acquire and renew"
			opts = append(opts, lock.WithKeepAlive(lock.KeepAlive{Renewals: 1 + s.rand.IntN(5)}))
		}
		bound := time.Duration(0)
		if c.bounded = s.chance(.2); c.bounded {
			bound = s.upTo(3 * time.Second)
		}
		s.call(c, func(ctx context.Context, l *lock.Locker, c *simCall) error {
			if bound > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, bound)
				defer cancel()
			}
			return c.take(l.Acquire(ctx, c.resources[0], opts...))
		})
	case x < .8 && s.plan.resources > 1 && l.calls == 0:
		// Alone: it goes on to its next resource at the moment at which a caller behind it begins, and which of them
		// is first is up to the scheduler.
		l.calls = simCalls
		c.what, c.resources = "acquire all", []string{"r1", "r0"}
		c.done = func(c *simCall) {
			l.calls -= simCalls
			s.acquired(c)
		}
		s.call(c, func(ctx context.Context, l *lock.Locker, c *simCall) (err error) {
			c.leases, err = l.AcquireAll(ctx, c.resources, lock.WithTTL(c.ttl))
			return err
		})
	case x < .85:
		s.cancelOne()
	default:
		s.releaseOne()
	}
}

func (c *simCall) take(lease *lock.Lease, err error) error {
	if err == nil {
		c.leases = []*lock.Lease{lease}
	}
	return err
}

// cancelOne has one waiting caller give up.
func (s *sim) cancelOne() {
	for id := range s.called {
		if c := s.calls[id+1]; c != nil && c.waits && !c.bounded && s.chance(.5) {
			s.logf("l%d call %d is given up", c.locker, c.id)
			c.bounded = true
			c.cancel()
			return
		}
	}
}

func (s *sim) releaseOne() {
	if len(s.leases) > 0 {
		s.release(s.leases[s.rand.IntN(len(s.leases))])
	}
}

// acquired gives the leases of a call a life.
func (s *sim) acquired(c *simCall) {
	if c.err != nil {
		if errors.Is(c.err, lock.ErrHeld) {
			s.counts.refused++
		}
		return
	}
	for i, l := range c.leases {
		h := s.admit(c, c.resources[i], l)
		switch x := s.rand.Float64(); {
		case x < .1: // its process forgets it
		case x < .4:
			h.ttl = 0
			for range 2 {
				s.after(s.upTo(c.ttl), func() { s.extend(h) })
			}
			s.after(s.upTo(2*c.ttl), func() { s.release(h) })
		case x < .65:
			s.after(s.upTo(50*time.Millisecond), func() { s.release(h) })
		default:
			s.after(s.upTo(c.ttl+c.ttl/4), func() { s.release(h) })
		}
	}
}

func (s *sim) extend(h *simLease) {
	if h.gone {
		return
	}
	ttl := s.ttl()
	s.call(&simCall{what: "extend", locker: h.locker, resources: []string{h.resource}, done: func(c *simCall) {
		if c.err == nil {
			s.counts.extended++
		}
	}}, func(ctx context.Context, _ *lock.Locker, _ *simCall) error { return h.Extend(ctx, ttl) })
}

func (s *sim) release(h *simLease) {
	if h.gone {
		return
	}
	h.gone = true
	s.counts.released++
	if s.chance(.3) {
		s.logf("l%d releases token %d of %s", h.locker, h.token, h.resource)
		h.ReleaseAsync()
		s.given[h.owner] = true
		return
	}
	s.call(&simCall{what: "release", locker: h.locker, resources: []string{h.resource}, done: func(c *simCall) {
		if c.err == nil {
			s.given[h.owner] = true
		}
	}}, func(ctx context.Context, _ *lock.Locker, _ *simCall) error { return h.Release(ctx) })
}

// fault breaks something.
func (s *sim) fault() {
	s.counts.faults++
	n := s.nodes[s.rand.IntN(len(s.nodes))]
	l := s.lockers[s.rand.IntN(len(s.lockers))]
	d := s.upTo(3 * time.Second)
	switch x := s.rand.Float64(); {
	case x < .2:
		n.frozen = time.Now().Add(d)
		s.logf("   %s is frozen for %v", n.name, d)
		s.faulty(d)
	case x < .35:
		l.cutOff = time.Now().Add(d)
		s.logf("   l%d is cut off for %v", slices.Index(s.lockers, l), d)
		s.faulty(d)
	case x < .45:
		s.suspendAll(d * 3)
	case x < .5:
		d = s.upTo(10 * time.Second)
		s.logf("   l%d is suspended for %v", slices.Index(s.lockers, l), d)
		s.suspend(l, d)
	case x < .55:
		s.logf("   l%d has its clock set", slices.Index(s.lockers, l))
		l.clock.Set(s.upTo(10*time.Second) - 5*time.Second)
	case x < .6 && s.plan.jumps && n.up:
		d = s.upTo(20 * time.Second)
		s.logf("   %s jumps by %v", n.name, d)
		n.Mini().FastForward(d)
	case x < .65 && s.plan.jumps && n.up:
		d = s.upTo(20 * time.Second)
		s.logf("   %s jumps back by %v", n.name, d)
		for _, key := range n.Mini().Keys() {
			if ttl := n.Mini().TTL(key); ttl > 0 {
				n.Mini().SetTTL(key, ttl+d)
			}
		}
		s.back = max(s.back, d) + d
	default:
		s.lose(n)
	}
}

// suspend lets time pass on a Locker's clock alone.
func (s *sim) suspend(l *simLocker, d time.Duration) {
	l.clock.Suspend(d)
	l.suspended = append(l.suspended, suspension{time.Now(), d})
	for _, h := range s.leases {
		if s.lockers[h.locker] == l {
			h.asleep += d
		}
	}
}

// suspendAll lets time pass of which no Locker knows: the nodes run on.
func (s *sim) suspendAll(d time.Duration) {
	s.logf("   all Lockers are suspended for %v", d)
	for _, l := range s.lockers {
		s.suspend(l, d)
	}
	for _, n := range s.nodes {
		n.passed(d)
	}
	s.slept = append(s.slept, suspension{time.Now(), d})
}

// passed lets time pass on the node alone.
func (n *simNode) passed(d time.Duration) {
	if m := n.Mini(); m != nil {
		m.FastForward(d)
	} else {
		n.Kept().FastForward(d)
	}
}

// lose stops a node, restarts it, or empties it. Without an Armer the nodes keep the epoch, so a majority has to stay.
func (s *sim) lose(n *simNode) {
	if !n.up {
		return
	}
	out := 0
	for _, o := range s.nodes {
		if o != n && !s.admitted(o) {
			out++
		}
	}
	if !s.plan.armed && out+1 > (len(s.nodes)-1)/2 {
		s.logf("   %s is left alone", n.name)
		return
	}
	s.lost(n)
	switch x := s.rand.Float64(); {
	case x < .2:
		s.logf("   %s is flushed", n.name)
		n.Mini().FlushAll()
	default:
		d, empty := s.upTo(50*time.Millisecond), s.chance(.5)
		if x > .6 {
			d = s.upTo(8 * time.Second)
		}
		s.logf("   %s stops for %v, empty: %t", n.name, d, empty)
		n.up = false
		n.Stop()
		s.after(d, func() { s.startNode(n, empty) })
	}
	if n.up {
		s.operate(n)
	}
}

func (s *sim) startNode(n *simNode, empty bool) {
	if n.up {
		return
	}
	s.logf("   %s starts", n.name)
	n.up = true
	if empty {
		n.Lose(s.t)
	} else {
		n.Restart(s.t)
	}
	s.operate(n)
}

// operate has an operator admit a node, where nobody else does.
func (s *sim) operate(n *simNode) {
	if s.plan.armed {
		return
	}
	at := s.rand.IntN(len(s.lockers))
	var try func()
	try = func() {
		if s.admitted(n) || !n.up || s.operated[n] {
			return
		}
		s.operated[n] = true
		s.call(&simCall{what: "admit " + n.name, locker: at, done: func(c *simCall) {
			s.operated[n] = false
			if c.err != nil {
				s.after(time.Second, try)
			}
		}}, func(ctx context.Context, l *lock.Locker, _ *simCall) error { return admin.Of(l).Admit(ctx, n.name) })
	}
	s.after(s.upTo(2*time.Second), try)
}

// heal ends all faults.
func (s *sim) heal() {
	s.logf("   all is healed")
	s.healed = true
	for _, n := range s.nodes {
		n.frozen = time.Now()
		s.startNode(n, false)
	}
	for _, l := range s.lockers {
		l.cutOff = time.Now()
	}
	for id := range s.called {
		if c := s.calls[id+1]; c != nil && c.waits && (s.counts.messages > simMessages || s.chance(.5)) {
			c.bounded = true
			c.cancel()
			s.sleep(time.Microsecond) // two at one moment would be in the scheduler's order
		}
	}
	s.faulty(0)
}

// faulty notes that a fault has effects for a while.
func (s *sim) faulty(d time.Duration) {
	if end := time.Now().Add(d); end.After(s.until) {
		s.until = end
	}
}

// close closes the Lockers.
func (s *sim) close() {
	broken := s.broken
	s.broken = ""
	for at := range s.lockers {
		s.call(&simCall{what: "close", locker: at}, func(_ context.Context, l *lock.Locker, _ *simCall) error { return l.Close() })
	}
	s.closing = true
	s.spin(s.idle, simCloses, "the Lockers are closed")
	if s.broken == "" && broken == "" {
		s.ghosts()
	}
	s.broken = cmp.Or(broken, s.broken)
	for s.idle() && len(s.events) > 0 { // what is still on its way
		heap.Pop(&s.events).(event).do()
	}
	for _, n := range s.nodes {
		n.Stop()
	}
}

// ttl draws the TTL of a lease.
func (s *sim) ttl() time.Duration {
	if s.chance(.1) {
		return s.plan.maxTTL
	}
	return time.Duration(1+s.rand.IntN(8)) * time.Second
}

func (s *sim) chance(p float64) bool { return p > 0 && s.rand.Float64() < p }

// upTo draws a time.
func (s *sim) upTo(d time.Duration) time.Duration { return time.Duration(s.rand.Int64N(int64(d))) + 1 }

// gap draws the time to the next step.
func (s *sim) gap() time.Duration {
	switch x := s.rand.Float64(); {
	case x < s.plan.busy:
		return s.upTo(20 * time.Millisecond)
	case x < .9:
		return s.upTo(time.Second)
	}
	return s.upTo(4 * time.Second)
}

func (s *sim) logf(format string, args ...any) {
	at := time.Since(s.start)
	s.trace = append(s.trace, fmt.Sprintf("%3d.%09d ", at/time.Second, at%time.Second)+fmt.Sprintf(format, args...))
}

// outcomeOf is an error without what is random in it.
func outcomeOf(err error) string {
	switch {
	case err == nil:
		return "done"
	case errors.Is(err, lock.ErrHeld):
		return "held"
	case errors.Is(err, lock.ErrNoQuorum):
		return "no quorum"
	case errors.Is(err, lock.ErrLost):
		return "lost"
	case errors.Is(err, lock.ErrReleased):
		return "released"
	case errors.Is(err, lock.ErrClosed):
		return "closed"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "given up"
	}
	return "another error"
}

// simArmer is a fence in memory: a compare-and-set per resource. Some of its answers are lost.
type simArmer struct {
	s    *sim
	seed uint64
	register
}

func (a *simArmer) Arm(ctx context.Context, all ...fence.Arming) error {
	arming := all[0]
	err := a.register.Arm(ctx, all...)
	if err == nil && !a.s.plan.calm && rand.New(rand.NewPCG(a.seed, uint64(arming.Token)+uint64(len(arming.Resource)))).IntN(20) == 0 {
		return fmt.Errorf("the answer is lost: %w", fence.ErrUnknown)
	}
	return err
}
