package lock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Readmit is [Locker.AdmitBegin], the wait, and [Locker.Admit], again where
// another admission came between, until the node is admitted or ctx ends. With an error that
// leaves the admission valid, the next Readmit of this Locker goes on with it. What another
// process has begun is its to end, for ten seconds and more after its quarantine is over, which
// this one may shorten.
func (l *Locker) Readmit(ctx context.Context, node string) error {
	n, err := l.nodeNamed(node)
	if err != nil {
		return err
	}
	var seen another
	for {
		a, err := l.admission(ctx, n, true)
		wait := a.begun.add(min(a.Quarantine, l.askAfter())).left()
		if a.intact {
			wait = 0
		}
		for err == nil {
			if err = pause(ctx, wait); err != nil {
				break
			}
			err = l.Admit(ctx, a)
			if err == nil {
				l.forget(n)
				return nil
			}
			quarantine, ok := errors.AsType[*quarantineError](err)
			switch {
			case ok && quarantine.left <= a.Quarantine:
				wait, err = min(quarantine.left+time.Millisecond, askEvery+jitter()), nil
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
		case errors.Is(err, errOthers):
			err = pause(ctx, askEvery/4+jitter())
		case errors.As(err, &quarantine): // somebody else's
			seen.hasten(ctx, l, n)
			err = pause(ctx, seen.again(l, quarantine.left))
		case voids(err):
			err = pause(ctx, jitter())
		}
		if err != nil {
			return err
		}
	}
}

// take is this Locker's own admission of a node that it could not go on with, if there is one.
// It is the caller's then, who may keep it again.
func (l *Locker) take(n *node) Admission {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.begun[n.index]
	delete(l.begun, n.index)
	return a
}

// keep keeps an admission over an error, unless it is void with it: its quarantine would be
// waited for to the end, as another's, before it could begin anew.
func (l *Locker) keep(n *node, a Admission, err error) {
	stale := errors.Is(err, errStaleBase)
	if a.Nonce == "" || errors.Is(err, errAdmitted) || voids(err) && !stale {
		return
	}
	if stale {
		a.Base = 0 // a new epoch is enough
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun[n.index] = a
}

// endPatience is how long another process may take, after a quarantine, to read the others' locks
// and to give them to the node, which takes seconds with many thousands. Where it has ended
// they are waited for in vain. Nobody ends another's admission in its place: that its quarantine
// is too short for the record of the longest TTL, see longestFor, is noticed by its owner alone,
// and once it is over nothing on the node tells how long it was.
const endPatience = 10 * time.Second

// overdue is an admission of another process whose quarantine is over.
type overdue struct {
	nonce string
	until instant // when it may be begun anew, endPatience after this process first saw it over
	times int     // how many before it were over, and begun anew by anybody
}

// waitsForOther reports whether another's admission, its quarantine over, is its to end still.
// Processes that begin anew what others are ending would keep the node out for good: they have
// more patience each time.
func (l *Locker) waitsForOther(n *node, nonce string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.overdue[n.index]
	if o.nonce != nonce {
		if o.nonce != "" {
			o.times = min(o.times+1, 5)
		}
		wait := endPatience << o.times
		o.nonce, o.until = nonce, now().add(wait+rand.N(wait/2))
		l.overdue[n.index] = o
	}
	return !o.until.passed()
}

// forget is of a node that is admitted.
func (l *Locker) forget(n *node) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.overdue, n.index)
}

// voids reports whether an admission has to begin again.
func voids(err error) bool {
	return errors.Is(err, errRace) || errors.Is(err, errRestarted) || errors.Is(err, errStaleBase)
}

func jitter() time.Duration { return 50*time.Millisecond + rand.N(200*time.Millisecond) }

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
