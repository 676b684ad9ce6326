package lock

import (
	"context"
	"sync"
)

// Owner lets calls that belong together share their leases: an acquisition [WithOwner] of
// a resource that the same Owner holds by the same Locker returns another handle of that
// lease at once, with its token and its time to live. The lease is given back when every
// handle has been released. Pass it from call to call, as an argument or in a context; a
// holder's name is for people and gives nobody a lease. It is safe for concurrent use.
type Owner struct {
	mu    sync.Mutex
	held  map[holding]*session
	turns map[holding]chan struct{} // acquisitions that are on their way
}

// holding is one resource of a Locker.
type holding struct {
	l        *Locker
	resource string
}

// NewOwner makes an Owner that holds nothing.
func NewOwner() *Owner {
	return &Owner{held: make(map[holding]*session), turns: make(map[holding]chan struct{})}
}

// WithOwner says whose acquisition it is. The other options count where the lease is a new
// one. [Locker.AcquireAll] refuses it.
func WithOwner(o *Owner) AcquireOption { return func(a *acquireOptions) { a.owner = o } }

// lease returns another handle of what is held, or takes it. One of several calls takes;
// the others wait for it.
func (o *Owner) lease(ctx context.Context, of holding, take func() (*Lease, error)) (*Lease, error) {
	done, again, err := o.turn(ctx, of)
	if again != nil || err != nil {
		return again, err
	}
	defer done()
	lease, err := take()
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	o.held[of] = lease.s
	o.mu.Unlock()
	lease.s.onEnd(func() { o.forget(of, lease.s) })
	return lease, nil
}

// turn returns another handle, or what ends the turn of the caller, who is to take it.
func (o *Owner) turn(ctx context.Context, of holding) (done func(), again *Lease, err error) {
	for {
		o.mu.Lock()
		s, others := o.held[of], o.turns[of]
		if s == nil && others == nil {
			mine := make(chan struct{})
			o.turns[of] = mine
			o.mu.Unlock()
			return func() {
				o.mu.Lock()
				delete(o.turns, of)
				o.mu.Unlock()
				close(mine)
			}, nil, nil
		}
		o.mu.Unlock()
		if s != nil {
			if s.retain() == nil {
				return nil, &Lease{s: s}, nil
			}
			o.forget(of, s)
			continue
		}
		select {
		case <-others:
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		}
	}
}

// forget drops a lease that is over.
func (o *Owner) forget(of holding, s *session) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held[of] == s {
		delete(o.held, of)
	}
}
