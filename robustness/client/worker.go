package client

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

// The bounds of single calls, on top of their own waits and pauses.
const (
	shortCall = 2 * time.Second
	longCall  = 8 * time.Second
)

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

	surface  string
	resource string
	ttl      time.Duration
	known    map[string]string // values read or written under this lease; complete, or nil
	doubt    string            // ID of a write of unknown outcome
}

func (p *process) begin(ctx context.Context, order Order) *round {
	r := &round{
		process: p, number: order.Round, resources: order.Resources,
		stop: make(chan struct{}), graves: make(chan struct{}, 2*p.cfg.Workers),
	}
	for n := range p.cfg.Workers {
		w := &worker{round: r, worker: n + 1, dice: newDice(uint64(p.env.dice.below(1<<62)), uint64(n))}
		r.all.Go(func() { w.work(ctx) })
	}
	return r
}

func (w *worker) stopped(ctx context.Context) bool {
	select {
	case <-w.stop:
		return true
	default:
		return ctx.Err() != nil
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
		l, ok := w.acquire(ctx, resource, try)
		if !ok {
			w.sleep(ctx, w.dice.between(5*time.Millisecond, 250*time.Millisecond))
			continue
		}
		if over := w.use(ctx, l); (over || w.leave(ctx, l)) && w.dice.chance(3) {
			next = resource
		}
	}
}

func (w *worker) acquire(ctx context.Context, resource string, try bool) (*lease, bool) {
	l := &lease{surface: w.cfg.Surfaces[w.dice.below(len(w.cfg.Surfaces))], resource: resource}
	l.ttl = w.dice.between(shortestTTL, w.cfg.MaxTTL)
	if w.dice.chance(2) { // most leases are short
		l.ttl = w.dice.between(shortestTTL, min(2*shortestTTL, w.cfg.MaxTTL))
	}
	l.ttl = l.ttl.Truncate(time.Millisecond)
	limit := shortCall + w.dice.between(time.Second, 5*time.Second)
	op := history.Op{Surface: l.surface, Action: history.Acquire, Resource: resource}
	op = w.call(ctx, op, limit, func(ctx context.Context, op *history.Op) (err error) {
		l.holding, err = w.surfaces[l.surface].acquire(ctx, ask{id: op.ID, resource: resource, ttl: l.ttl, try: try})
		if err == nil {
			op.Token, op.Until = l.token(), until(l.deadline())
		}
		return err
	})
	return l, op.Outcome == history.Done
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
		if h, ok := l.holding.(hasty); ok && w.dice.chance(5) {
			w.flush(ctx, l, h)
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

// end is the holder's estimate of the lease's end.
func (l *lease) end() time.Time {
	if end := l.deadline(); !end.IsZero() {
		return end
	}
	return time.Now().Add(l.ttl)
}

// read reads every register under the lease. It returns false if there is no basis for a write.
func (w *worker) read(ctx context.Context, l *lease) bool {
	known := map[string]string{}
	for _, register := range w.surfaces[l.surface].registers(l.resource) {
		saw, ok := w.look(ctx, l, register)
		if !ok {
			l.known = nil
			return false
		}
		known[register] = saw
	}
	if l.doubt != "" {
		for _, saw := range known { // a missing write may still arrive
			if saw != l.doubt {
				l.known = nil
				return false
			}
		}
	}
	l.known, l.doubt = known, ""
	return true
}

func (w *worker) look(ctx context.Context, l *lease, register string) (saw string, ok bool) {
	limit := w.dice.between(shortCall, longCall)
	op := w.opening(history.Op{
		Surface: l.surface, Action: history.Read, Resource: l.resource, Token: l.token(),
		Register: register, Under: true,
	}, limit)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var err error
	op.Saw, op.Wrong, err = l.holding.read(ctx, register)
	op.End = history.Now()
	w.setOutcome(&op, err)
	w.put(op)
	return op.Saw, op.Outcome == history.Done && op.Wrong == ""
}

// write sets the registers to this write's ID, sometimes again if that failed. It returns false if the program has no
// basis for another write.
func (w *worker) write(ctx context.Context, l *lease, p *pause) bool {
	for try := 0; ; try++ {
		op := w.put1(ctx, l, p)
		switch op.Outcome {
		case history.Done:
			for register := range l.known {
				l.known[register] = op.ID
			}
			return true
		case history.Refused, history.Failed:
			if try == 3 || w.dice.chance(3) || w.stopped(ctx) {
				return op.Outcome == history.Failed
			}
			w.sleep(ctx, w.dice.between(0, 150*time.Millisecond))
		default:
			l.known, l.doubt = nil, op.ID
			return time.Now().Before(l.end()) && w.read(ctx, l)
		}
	}
}

func (w *worker) put1(ctx context.Context, l *lease, p *pause) history.Op {
	return w.putTelling(ctx, l, p, func() {})
}

// putTelling calls begun when the write's beginning is recorded.
func (w *worker) putTelling(ctx context.Context, l *lease, p *pause, begun func()) history.Op {
	op := history.Op{Surface: l.surface, Action: history.Write, Resource: l.resource, Token: l.token()}
	op.Based = maps.Clone(l.known)
	limit := p.left() + w.dice.between(shortCall, longCall)
	if p.tended {
		defer w.tend(ctx, l)()
	}
	return w.call(ctx, op, limit, func(ctx context.Context, op *history.Op) error {
		begun()
		return l.holding.write(ctx, write{id: op.ID, pause: p.take, nap: p.nap, chance: w.dice.chance, noted: w.noter(l)})
	})
}

// tend renews the lease in the background, as a program with long writes does, until end is called.
func (w *worker) tend(ctx context.Context, l *lease) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	keeper := &worker{round: w.round, worker: w.worker, dice: newDice(uint64(w.dice.below(1<<62)), 0)}
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
	return func() {
		cancel()
		all.Wait()
	}
}

// linger keeps the lease for a while and reads again, as a program does that checks its write. It returns false if
// there is no basis for a write.
func (w *worker) linger(ctx context.Context, l *lease) bool {
	defer w.tend(ctx, l)()
	w.sleep(ctx, w.dice.between(0, 4*time.Second))
	return w.read(ctx, l)
}

// noter records reads within a write.
func (w *worker) noter(l *lease) func(int64, string, string) {
	return func(began int64, register, saw string) {
		op := w.opening(history.Op{
			Surface: l.surface, Action: history.Read, Resource: l.resource, Token: l.token(),
			Register: register, Under: true, Saw: saw,
		}, longCall)
		op.Begin, op.End, op.Outcome = began, history.Now(), history.Done
		w.put(op)
	}
}

func (w *worker) renew(ctx context.Context, l *lease) {
	if l.deadline().IsZero() {
		return // it is renewed automatically
	}
	op := history.Op{Surface: l.surface, Action: history.Renew, Resource: l.resource, Token: l.token()}
	w.call(ctx, op, longCall, func(ctx context.Context, op *history.Op) error {
		err := l.holding.renew(ctx)
		if err == nil {
			op.Until = until(l.deadline())
		}
		return err
	})
}
