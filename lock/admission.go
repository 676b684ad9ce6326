package lock

import (
	"context"
	"errors"
	"time"

	"github.com/fencegate/fencegate/fence/clock"
)

// Admit admits a node that lost its data or was restarted. It returns once the node is admitted, after its quarantine,
// or when ctx ends; the next Admit of this Locker then continues. An admission that another process began is left to
// that process until at least ten seconds after its quarantine, which this one may shorten.
//
// It needs an EpochStore, or an Armer, which guarantees rising tokens by itself, or a quorum of other admitted nodes,
// which then keep the epoch. Without them a group goes on by [Locker.Init] with [Above].
func (l *Locker) Admit(ctx context.Context, node string) error {
	if err := l.keyed(ctx); err != nil {
		return err
	}
	n, err := l.nodeNamed(node)
	if err != nil {
		return err
	}
	return l.admit(ctx, n)
}

func (l *Locker) admit(ctx context.Context, n *node) error {
	var seen another
	for {
		a, err := l.admission(ctx, n)
		wait := a.begun.Add(min(a.quarantine, l.askAfter())).Left()
		if a.intact {
			wait = 0
		}
		for err == nil {
			if err = pause(ctx, wait); err != nil {
				break
			}
			err = l.end(ctx, n, a)
			if err == nil {
				l.forget(n)
				return nil
			}
			quarantine, ok := errors.AsType[*quarantineError](err)
			switch {
			case ok && quarantine.left <= a.quarantine:
				wait, err = min(quarantine.left+time.Millisecond, askEvery+l.dice.jitter()), nil
			case ok: // the node's clock was set back: begin again
				err = errRace
			}
		}
		l.keep(n, a, err)
		var quarantine *quarantineError
		switch {
		case errors.Is(err, errAdmitted):
			l.forget(n)
			return nil
		case errors.Is(err, errOthers), errors.Is(err, errNewID):
			err = pause(ctx, askEvery/4+l.dice.jitter())
		case errors.As(err, &quarantine): // another process's
			seen.hasten(ctx, l, n)
			err = pause(ctx, seen.again(l, quarantine.left))
		case voids(err):
			err = pause(ctx, l.dice.jitter())
		}
		if err != nil {
			return err
		}
	}
}

// take returns this Locker's own admission of a node that an error stopped, if there is one. It is the caller's then,
// who may keep it again.
func (l *Locker) take(n *node) admission {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.begun[n.index]
	delete(l.begun, n.index)
	return a
}

// keep stores an admission after an error, unless it is void. Otherwise its quarantine would be awaited to the end,
// like another process's, before a new one could begin.
func (l *Locker) keep(n *node, a admission, err error) {
	stale := errors.Is(err, errStaleBase)
	if a.nonce == "" || errors.Is(err, errAdmitted) || voids(err) && !stale {
		return
	}
	if stale {
		a.base = 0 // a new epoch is sufficient
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun[n.index] = a
}

// endPatience is how long another process may take, after a quarantine, to read the other nodes' locks and to copy
// them to the node, which takes seconds for many thousands. If that process has died, the wait is in vain. No process
// completes another's admission: after the quarantine nothing on the node says how long it was.
const endPatience = 10 * time.Second

// overdue is an admission of another process whose quarantine is over.
type overdue struct {
	nonce string
	until clock.Instant // when a new one may begin, endPatience after this process first saw it over
	times int           // how many before it were over and replaced
}

// waitsForOther reports whether another process's admission, whose quarantine is over, is still left to that process.
// If processes replaced admissions that others are completing, the node would stay out forever, so the patience grows
// each time.
func (l *Locker) waitsForOther(n *node, nonce string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.overdue[n.index]
	if o.nonce != nonce {
		if o.nonce != "" {
			o.times = min(o.times+1, 5)
		}
		wait := endPatience << o.times
		o.nonce, o.until = nonce, l.clock.Now().Add(wait+l.dice.random(wait/2))
		l.overdue[n.index] = o
	}
	return !o.until.Passed()
}

// forget clears the record of another's admission, once the node is admitted.
func (l *Locker) forget(n *node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.overdue, n.index)
}

// voids reports whether an admission has to begin again.
func voids(err error) bool {
	return errors.Is(err, errRace) || errors.Is(err, errRestarted) || errors.Is(err, errStaleBase)
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
