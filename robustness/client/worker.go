package client

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/robustness/history"
)

// The bounds of single calls, on top of their own waits and pauses.
const (
	shortCall = 2 * time.Second
	longCall  = 8 * time.Second
)

// shortestTTL is the TTL of the shortest lease.
const shortestTTL = 400 * time.Millisecond

// round is the work of a client between two Orders.
type round struct {
	*process

	number    int
	resources []string
	stop      chan struct{}  // closed at rest
	all       sync.WaitGroup // workers and zombies
	graves    chan struct{}  // places for zombies
}

// worker is one of a client's programs, or a zombie that it left.
type worker struct {
	*round

	worker int
	dice   *dice
}

// lease is a worker's lease and its state.
type lease struct {
	holding

	surface *surface
	ttl     time.Duration
	known   map[string]string // by register: values read or written under this lease; complete, or nil
	wrote   map[string]string // values of the last write
	doubt   map[string]string // values of a write of unknown outcome
}

func (p *process) begin(ctx context.Context, order Order) *round {
	r := &round{
		process: p, number: order.Round, resources: order.Resources,
		stop: make(chan struct{}), graves: make(chan struct{}, 2*p.cfg.Workers),
	}
	for n := range p.cfg.Workers {
		w := &worker{round: r, worker: n + 1, dice: p.env.dice.more()}
		r.all.Go(func() { w.work(ctx) })
	}
	return r
}

// other is another program of the worker.
func (w *worker) other() *worker {
	return &worker{round: w.round, worker: w.worker, dice: w.dice.more()}
}

func (w *worker) stopped(ctx context.Context) bool {
	select {
	case <-w.stop:
		return true
	default:
		return ctx.Err() != nil
	}
}

// sleep ends early at rest.
func (w *worker) sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-w.stop:
	}
}

func (w *worker) work(ctx context.Context) {
	next := "" // the resource just released, which is acquired again at once
	for !w.stopped(ctx) {
		resource, try := next, true
		if resource == "" {
			resource, try = w.resources[w.dice.below(len(w.resources))], w.dice.chance(3)
		}
		next = ""
		s := w.surfaces[w.cfg.Surfaces[w.dice.below(len(w.cfg.Surfaces))]]
		ttl := w.dice.between(shortestTTL, w.cfg.MaxTTL)
		if w.dice.chance(2) { // most leases are short
			ttl = w.dice.between(shortestTTL, min(2*shortestTTL, w.cfg.MaxTTL))
		}
		a := ask{resources: w.resourcesFor(s, resource), ttl: ttl.Truncate(time.Millisecond), try: try}
		l, op := w.acquire(ctx, s, a, shortCall+w.dice.between(time.Second, 5*time.Second))
		if op.Outcome != history.Done {
			w.sleep(ctx, w.dice.between(5*time.Millisecond, 250*time.Millisecond))
			continue
		}
		if over := w.use(ctx, l); (over || w.leave(ctx, l)) && w.dice.chance(3) {
			next = resource
		}
	}
}

// resourcesFor returns what a lease is asked for: the resource, or more if the surface can hold several.
func (w *worker) resourcesFor(s *surface, resource string) []string {
	if s.once {
		_, name, _ := strings.Cut(resource, "/")
		return []string{w.cfg.OnceBucket + "/" + name}
	}
	all := []string{resource}
	for n := w.dice.below(3); s.several && n > 0 && len(w.resources) > len(all); n-- {
		i := w.dice.below(len(w.resources))
		for slices.Contains(all, w.resources[i]) {
			i = (i + 1) % len(w.resources)
		}
		all = append(all, w.resources[i])
	}
	return all
}

func (w *worker) acquire(ctx context.Context, s *surface, a ask, limit time.Duration) (*lease, history.Op) {
	l := &lease{surface: s, ttl: a.ttl}
	ops := make([]history.Op, len(a.resources))
	for i, resource := range a.resources {
		ops[i] = history.Op{Surface: s.name, Action: history.Acquire, Resource: resource}
	}
	op := w.call(ctx, ops, limit, func(ctx context.Context) (err error) {
		a.id = ops[0].ID
		l.holding, err = s.acquire(ctx, a)
		return err
	}, func(i int, op *history.Op) {
		op.Token, op.Until = int64(l.grants[i].Token), until(l.deadline())
		w.mu.Lock()
		w.tokens[grantee{ops[0].ID, op.Resource}] = op.Token
		w.mu.Unlock()
	})
	return l, op
}

// ops returns a call under the lease, for each resource.
func (l *lease) ops(action history.Action) []history.Op {
	all := make([]history.Op, len(l.grants))
	for i, g := range l.grants {
		all[i] = history.Op{Surface: l.surface.name, Action: action, Resource: g.Resource, Token: int64(g.Token)}
	}
	return all
}

// use reads and writes under the lease. It returns true if it released the lease.
func (w *worker) use(ctx context.Context, l *lease) (over bool) {
	for range 1 + w.dice.below(3) {
		if w.dice.chance(6) {
			w.renew(ctx, l)
		}
		if (l.known == nil || w.dice.chance(3)) && !w.read(ctx, l) {
			return false
		}
		if !l.slow && w.dice.chance(5) {
			w.flush(ctx, l)
			return true
		}
		p := w.plan(l.end())
		if !l.deadline().IsZero() && w.dice.chance(8) {
			p = w.long()
		}
		if w.dice.chance(3) { // before the write begins
			p.take(ctx)
		}
		if !w.write(ctx, l, p) || w.stopped(ctx) || p.tended && w.dice.chance(2) && !w.linger(ctx, l) {
			return false
		}
	}
	return false
}

// end is the lease's deadline, or a guess of it.
func (l *lease) end() time.Time {
	if end := l.deadline(); !end.IsZero() {
		return end
	}
	return time.Now().Add(l.ttl)
}

// read reads every register under the lease. It returns false if there is no basis for a write.
func (w *worker) read(ctx context.Context, l *lease) bool {
	known := map[string]string{}
	for _, g := range l.grants {
		for _, register := range l.surface.registers(g) {
			saw, ok := w.look(ctx, l, g, register)
			if !ok || l.doubt != nil && saw != l.doubt[register] { // a missing write may still arrive
				l.known = nil
				return false
			}
			known[register] = saw
		}
	}
	l.known, l.doubt = known, nil
	return true
}

func (w *worker) look(ctx context.Context, l *lease, g fence.Grant, register string) (saw string, ok bool) {
	var wrong string
	op := w.call(ctx, []history.Op{l.reading(g, register)}, w.dice.between(shortCall, longCall), func(ctx context.Context) (err error) {
		saw, wrong, err = l.access.read(ctx, register)
		return err
	}, func(_ int, op *history.Op) { op.Saw, op.Wrong = saw, wrong })
	return op.Saw, op.Outcome == history.Done && op.Wrong == ""
}

func (l *lease) reading(g fence.Grant, register string) history.Op {
	return history.Op{
		Surface: l.surface.name, Action: history.Read, Resource: g.Resource, Token: int64(g.Token), Register: register, Under: true,
	}
}

// write sets the registers to this write's IDs, sometimes again if that failed. It returns false if the program has no
// basis for another write.
func (w *worker) write(ctx context.Context, l *lease, p *pause) bool {
	for try := 0; ; try++ {
		switch op := w.writeOnce(ctx, l, p, nil); op.Outcome {
		case history.Done:
			maps.Copy(l.known, l.wrote)
			return true
		case history.Refused, history.Failed:
			if try == 3 || w.dice.chance(3) || w.stopped(ctx) {
				return op.Outcome == history.Failed
			}
			w.sleep(ctx, w.dice.between(0, 150*time.Millisecond))
		default:
			l.known, l.doubt = nil, l.wrote
			return time.Now().Before(l.end()) && w.read(ctx, l)
		}
	}
}

// writeOnce calls begun when the write's beginning is recorded.
func (w *worker) writeOnce(ctx context.Context, l *lease, p *pause, begun func()) history.Op {
	ops := l.ops(history.Write)
	for i, g := range l.grants {
		ops[i].Based = map[string]string{}
		for _, register := range l.surface.registers(g) {
			if ops[i].Based[register] = l.known[register]; l.surface.once {
				ops[i].Based[register] = "" // what is there must not be replaced
			}
		}
	}
	if p.tended {
		defer w.tend(ctx, l)()
	}
	return w.call(ctx, ops, p.left()+w.dice.between(shortCall, longCall), func(ctx context.Context) error {
		if begun != nil {
			begun()
		}
		this := write{pause: p.take, nap: p.nap, dice: w.dice, noted: func(began int64, s setting, saw string) {
			op := l.reading(s.grant, s.register)
			op.Saw = saw
			w.happened(began, op)
		}}
		l.wrote = map[string]string{}
		for i, g := range l.grants {
			for _, register := range l.surface.registers(g) {
				this.set = append(this.set, setting{register, ops[i].ID, g})
				l.wrote[register] = ops[i].ID
			}
		}
		return l.access.write(ctx, this)
	}, nil)
}

// tend renews the lease in the background, as a program with long writes does, until end is called.
func (w *worker) tend(ctx context.Context, l *lease) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	keeper := w.other()
	var all sync.WaitGroup
	all.Go(func() {
		pace := time.NewTicker(l.ttl / 3)
		defer pace.Stop()
		for {
			select {
			case <-pace.C:
				keeper.renew(ctx, l)
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { cancel(); all.Wait() }
}

// linger keeps the lease for a while and reads again, as a program does that checks its write. It returns false if
// there is no basis for a write.
func (w *worker) linger(ctx context.Context, l *lease) bool {
	defer w.tend(ctx, l)()
	w.sleep(ctx, w.dice.between(0, 4*time.Second))
	return w.read(ctx, l)
}

// renew renews a lease that does not renew itself: those of several resources one by one, because some may be lost. If
// the product gives another lease in its place, that counts as an acquisition, whose lease is left to its TTL.
func (w *worker) renew(ctx context.Context, l *lease) {
	if l.deadline().IsZero() {
		return
	}
	for i, op := range l.ops(history.Renew) {
		var end time.Time
		var other *term
		op = w.call(ctx, []history.Op{op}, longCall, func(ctx context.Context) (err error) {
			end, err = l.term.renew(ctx, i)
			if f, ok := errors.AsType[*failure](err); ok {
				other = f.other
			}
			return err
		}, func(_ int, op *history.Op) { op.Until = until(end) })
		if other != nil {
			op.ID, op.Action, op.Code, op.Error = "", history.Acquire, "", ""
			op.Token, op.Until = int64(other.grants[0].Token), until(other.deadline())
			w.happened(op.Begin, op)
		}
	}
}

// leave ends the work under a lease: it is released, left to its TTL, or kept by a zombie. It returns true if a release
// was acknowledged.
func (w *worker) leave(ctx context.Context, l *lease) bool {
	switch w.dice.below(10) {
	case 0:
		l.forget()
		return false
	case 1, 2, 3:
		// A zombie with a lease that renews itself would block the resource as long as it lives.
		if l.known != nil && (!l.deadline().IsZero() || w.dice.chance(4)) && w.rise(ctx, l) {
			return false
		}
	}
	return w.release(ctx, l)
}

// release ends the lease. Some programs close their connections before that, and some afterwards.
func (w *worker) release(ctx context.Context, l *lease) bool {
	defer l.forget()
	if !l.slow && w.dice.chance(2) {
		l.forget()
	}
	return w.giveBack(ctx, l)
}

func (w *worker) giveBack(ctx context.Context, l *lease) bool {
	return w.call(ctx, l.ops(history.Release), longCall, l.term.release, nil).Outcome == history.Done
}

// flush writes in the background and releases the lease before the write has ended, as a program does that does not
// wait at its end. A waiter gets the lease while the write is running.
func (w *worker) flush(ctx context.Context, l *lease) {
	b := w.other()
	p := &pause{w: b}
	if w.dice.chance(2) {
		p.until = time.Now().Add(w.dice.between(10*time.Millisecond, 300*time.Millisecond))
	}
	var all sync.WaitGroup
	begun := make(chan struct{})
	all.Go(func() { b.writeOnce(ctx, l, p, func() { close(begun) }) })
	<-begun
	w.sleep(ctx, w.dice.between(0, 60*time.Millisecond))
	w.giveBack(ctx, l)
	all.Wait()
	l.forget()
}

// rise makes a zombie of the lease's holder, if there is a place for one.
func (w *worker) rise(ctx context.Context, l *lease) bool {
	select {
	case w.graves <- struct{}{}:
	default:
		return false
	}
	z := w.other()
	w.all.Go(func() {
		defer func() { <-w.graves }()
		defer l.forget()
		z.haunt(ctx, l)
	})
	return true
}

// haunt writes values based on old reads, several times, whatever the answers; and once more at rest.
func (w *worker) haunt(ctx context.Context, l *lease) {
	times, longest, lingers := 2+w.dice.below(5), 8*time.Second, w.dice.chance(2)
	if l.deadline().IsZero() {
		times, longest, lingers = 1+w.dice.below(2), 2*time.Second, false
	}
	for range times {
		w.sleep(ctx, w.dice.between(10*time.Millisecond, longest>>w.dice.below(6)))
		if w.stopped(ctx) {
			break
		}
		p := &pause{w: w}
		if w.dice.chance(2) {
			p.until = time.Now().Add(w.dice.between(time.Millisecond, time.Second))
		}
		if w.write(ctx, l, p); l.known == nil {
			return
		}
	}
	if lingers {
		select {
		case <-w.stop:
		case <-ctx.Done():
			return
		}
	}
	if w.stopped(ctx) && ctx.Err() == nil {
		w.writeOnce(ctx, l, &pause{w: w}, nil)
	} else if w.dice.chance(3) {
		w.release(ctx, l)
	}
}

// pause is one pause of a program, at any of the places that a write offers.
type pause struct {
	w      *worker
	until  time.Time // zero: none
	tended bool      // the lease is renewed during the write
}

// plans are the pauses of writes, from now or from the end of the lease on: often none, a short one, up to about the
// lease's end, to the end of its lock, which outlasts the holder's deadline, or well past it.
var plans = [8]struct {
	ofLease bool
	lo, hi  time.Duration
}{
	3: {false, time.Millisecond, 50 * time.Millisecond},
	4: {true, -25 * time.Millisecond, 25 * time.Millisecond},
	5: {true, 0, 120 * time.Millisecond},
	6: {true, 25 * time.Millisecond, 400 * time.Millisecond},
	7: {true, 400 * time.Millisecond, 2 * time.Second},
}

// plan draws the pause for a write.
func (w *worker) plan(end time.Time) *pause {
	p, drawn := &pause{w: w}, plans[w.dice.below(len(plans))]
	if !drawn.ofLease {
		end = time.Now()
	}
	if drawn.hi > 0 {
		p.until = end.Add(w.dice.between(drawn.lo, drawn.hi))
	}
	return p
}

// long draws a pause that outlasts most leases, for a program that renews its own during the pause.
func (w *worker) long() *pause {
	d := w.dice.between(300*time.Millisecond, 5*time.Second>>w.dice.below(3))
	return &pause{w: w, until: time.Now().Add(d), tended: true}
}

// left is how long the pause still lasts.
func (p *pause) left() time.Duration {
	if p.until.IsZero() {
		return 0
	}
	return max(time.Until(p.until), 0)
}

// take pauses here, or leaves the pause to a later place.
func (p *pause) take(ctx context.Context) {
	if d := p.nap(); d > 0 {
		p.w.sleep(ctx, d)
	}
}

// nap is take for a pause in another program. It returns the pause's length.
func (p *pause) nap() time.Duration {
	d := p.left()
	if d == 0 || p.w.dice.chance(2) {
		return 0
	}
	p.until = time.Time{}
	return d
}
