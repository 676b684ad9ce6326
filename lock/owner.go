package lock

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Owner lets calls that belong together share their leases: an acquisition [WithOwner] of
// a resource that the same Owner holds by the same Locker returns another handle of that
// lease at once, with its token and its time to live. The lease is given back when every
// handle has been released. Pass it from call to call, as an argument or in a context; a
// holder's name is for people and gives nobody a lease. It is safe for concurrent use.
type Owner struct {
	mu    sync.Mutex
	held  map[holding]*session
	turns map[holding]*turn
}

// holding is one resource of a Locker.
type holding struct {
	l        *Locker
	resource string
}

// NewOwner makes an Owner that holds nothing.
func NewOwner() *Owner {
	return &Owner{held: make(map[holding]*session), turns: make(map[holding]*turn)}
}

// WithOwner says whose acquisition it is. The other options count where the lease is a new
// one; [WithKeepAlive], and so [Locker.Do], also where it is not. While another call of the
// owner waits for the lease, this one waits for that as long as it would wait for another
// holder: [Locker.TryAcquire] fails with [ErrHeld]. [Locker.AcquireAll] refuses it.
func WithOwner(o *Owner) AcquireOption { return func(a *acquireOptions) { a.owner = o } }

// turn is an acquisition that is on its way.
type turn struct {
	ended chan struct{}
	brief bool  // it waits for nobody
	err   error // why it failed; good once it has ended
}

// lease returns another handle of what is held, or takes it. One of several calls takes;
// the others wait for it, as long as their options say.
func (o *Owner) lease(ctx context.Context, of holding, opts acquireOptions, take func(acquireOptions) (*Lease, error)) (*Lease, error) {
	came := time.Now()
	again, mine, err := o.next(ctx, of, opts)
	if err != nil {
		_, err = of.l.measured(nil, err, came)
		return nil, err
	}
	if again != nil {
		if opts.keepAlive != nil {
			again.keepAlive(*opts.keepAlive)
		}
		return again, nil
	}
	defer o.end(of, mine)
	opts.waited = time.Since(came)
	lease, err := take(opts)
	if mine.err = err; err != nil {
		return nil, err
	}
	o.mu.Lock()
	o.held[of] = lease.s
	o.mu.Unlock()
	lease.s.onEnd(func() { o.forget(of, lease.s) })
	return lease, nil
}

// next returns another handle, or the turn of the caller, who is to take the lease.
func (o *Owner) next(ctx context.Context, of holding, opts acquireOptions) (*Lease, *turn, error) {
	came := time.Now()
	patience, bounded := opts.patience()
	brief := bounded && patience <= 0
	var over <-chan time.Time
	if patience > 0 {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		over = timer.C
	}
	for seen := 0; ; {
		again, mine, other := o.look(of, brief)
		switch {
		case other == nil:
			return again, mine, nil
		case brief && !other.brief:
			return nil, nil, of.l.lines.whySince(of.resource, came)
		}
		select {
		case <-other.ended:
			// The second that ended began after this call came: its answer is good for this one too.
			if seen++; brief && seen > 1 && Retryable(other.err) {
				return nil, nil, other.err
			}
		case <-over:
			brief = true
		case <-ctx.Done():
			err := context.Cause(ctx)
			if !other.brief {
				err = fmt.Errorf("%w: %w", of.l.lines.whySince(of.resource, came), err)
			}
			return nil, nil, err
		}
	}
}

// look returns another handle of what is held, or a turn for the caller, or whose turn it is.
func (o *Owner) look(of holding, brief bool) (again *Lease, mine, other *turn) {
	for {
		o.mu.Lock()
		s := o.held[of]
		other = o.turns[of]
		if s == nil && other == nil {
			mine = &turn{ended: make(chan struct{}), brief: brief}
			o.turns[of] = mine
		}
		o.mu.Unlock()
		switch {
		case s == nil:
			return nil, mine, other
		case s.retain() == nil:
			return &Lease{s: s}, nil, nil
		}
		o.forget(of, s)
	}
}

// end ends a turn.
func (o *Owner) end(of holding, t *turn) {
	o.mu.Lock()
	delete(o.turns, of)
	o.mu.Unlock()
	close(t.ended)
}

// forget drops a lease that is over.
func (o *Owner) forget(of holding, s *session) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held[of] == s {
		delete(o.held, of)
	}
}
