package lock

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Owner lets related calls share their leases. An acquisition [WithOwner] of a resource that the same Owner holds by
// the same Locker returns another handle of that lease at once, with its token and its TTL. The lease is released
// when every handle has been released. Pass the Owner from call to call, as an argument or in a context. A holder's
// name is only for display and shares no lease. An Owner is safe for concurrent use.
type Owner struct {
	mu       sync.Mutex
	sessions map[holding]*session
	turns    map[holding]*turn
}

// holding is one resource of a Locker.
type holding struct {
	l        *Locker
	resource string
}

// NewOwner creates an Owner that holds nothing.
func NewOwner() *Owner {
	return &Owner{sessions: make(map[holding]*session), turns: make(map[holding]*turn)}
}

// WithOwner sets the owner of an acquisition. The other options apply if the lease is new; [WithKeepAlive], and so
// [Locker.Do], applies in any case. While another call of the owner waits for the lease, this one waits for that call
// as long as it would wait for another holder: [Locker.TryAcquire] fails with [ErrHeld]. [Locker.AcquireAll] refuses
// the option.
func WithOwner(o *Owner) AcquireOption { return func(a *acquireOptions) { a.owner = o } }

// turn is an acquisition in progress.
type turn struct {
	ended chan struct{}
	brief bool  // it does not wait
	err   error // why it failed; valid once it has ended
}

// lease returns another handle of a held lease, or takes it. One of several calls takes it; the others wait for that
// call, as long as their options allow.
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
	lease, err := take(opts)
	if mine.err = err; err != nil {
		return nil, err
	}
	o.mu.Lock()
	o.sessions[of] = lease.s
	o.mu.Unlock()
	lease.s.onEnd(func() { o.forget(of, lease.s) })
	return lease, nil
}

// next returns another handle, or a turn for the caller, which then takes the lease.
func (o *Owner) next(ctx context.Context, of holding, opts acquireOptions) (*Lease, *turn, error) {
	came := time.Now()
	for seen := 0; ; {
		again, mine, other := o.look(of, opts.atOnce)
		switch {
		case other == nil:
			return again, mine, nil
		case opts.atOnce && !other.brief:
			return nil, nil, of.l.lines.Why(of.resource, came)
		}
		select {
		case <-other.ended:
			// The second turn that ended began after this call came: its result is valid for this one too.
			if seen++; opts.atOnce && seen > 1 && Retryable(other.err) {
				return nil, nil, other.err
			}
		case <-ctx.Done():
			err := context.Cause(ctx)
			if !other.brief {
				err = fmt.Errorf("%w: %w", of.l.lines.Why(of.resource, came), err)
			}
			return nil, nil, err
		}
	}
}

// look returns another handle of a held lease, a turn for the caller, or the turn in progress.
func (o *Owner) look(of holding, brief bool) (again *Lease, mine, other *turn) {
	for {
		o.mu.Lock()
		s := o.sessions[of]
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
	if o.sessions[of] == s {
		delete(o.sessions, of)
	}
}
