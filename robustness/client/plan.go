package client

import (
	"context"
	"time"
)

// shortestTTL is the TTL of the shortest lease.
const shortestTTL = 400 * time.Millisecond

// pause is one pause of a program, at any of the places that a write offers.
type pause struct {
	w      *worker
	until  time.Time // zero: none
	tended bool      // the lease is renewed during the write
}

// plan draws the pause for a write: none, a short one, up to
// about the lease's end, to the end of its lock, or well past it.
func (w *worker) plan(end time.Time) *pause {
	now := time.Now()
	p := &pause{w: w}
	switch w.dice.below(8) {
	case 0, 1, 2:
	case 3:
		p.until = now.Add(w.dice.between(time.Millisecond, 50*time.Millisecond))
	case 4:
		p.until = end.Add(w.dice.between(-25*time.Millisecond, 25*time.Millisecond))
	case 5: // the lock outlasts the holder's deadline
		p.until = end.Add(w.dice.between(0, 120*time.Millisecond))
	case 6:
		p.until = end.Add(w.dice.between(25*time.Millisecond, 400*time.Millisecond))
	default:
		p.until = end.Add(w.dice.between(400*time.Millisecond, 2*time.Second))
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
