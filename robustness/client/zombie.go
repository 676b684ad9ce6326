package client

import (
	"context"
	"sync"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

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

func (w *worker) release(ctx context.Context, l *lease) bool {
	done := w.free(ctx, l, l.holding.release)
	l.forget()
	return done
}

func (w *worker) free(ctx context.Context, l *lease, release func(context.Context) error) bool {
	op := history.Op{Surface: l.surface, Action: history.Release, Resource: l.resource, Token: l.token()}
	op = w.call(ctx, op, longCall, func(ctx context.Context, _ *history.Op) error { return release(ctx) })
	return op.Outcome == history.Done
}

// flush writes in the background and releases the lease before the write has ended, as a program does that does not
// wait at its end. A waiter gets the lease while the write is running.
func (w *worker) flush(ctx context.Context, l *lease, h hasty) {
	b := &worker{round: w.round, worker: w.worker, dice: newDice(uint64(w.dice.below(1<<62)), 0)}
	p := &pause{w: b}
	if w.dice.chance(2) {
		p.until = time.Now().Add(w.dice.between(10*time.Millisecond, 300*time.Millisecond))
	}
	var all sync.WaitGroup
	begun := make(chan struct{})
	all.Go(func() { b.putTelling(ctx, l, p, func() { close(begun) }) })
	<-begun
	w.sleep(ctx, w.dice.between(0, 60*time.Millisecond))
	w.free(ctx, l, h.giveBack)
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
	z := &worker{round: w.round, worker: w.worker, dice: newDice(uint64(w.dice.below(1<<62)), 0)}
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
		w.put1(ctx, l, &pause{w: w})
	} else if w.dice.chance(3) {
		w.release(ctx, l)
	}
}
