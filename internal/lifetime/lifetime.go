// Package lifetime ends the calls and the background work of a source of leases in order.
//
// The guarantee: [Lifetime.Close] returns after its callers have returned and what they left to give back is given
// back, or after its patience has ended.
package lifetime

import (
	"context"
	"sync"
	"time"
)

// Lifetime is that of a source. It is safe for concurrent use.
type Lifetime struct {
	// Calls ends with Close.
	Calls context.Context //nolint:containedctx // of all calls, and as long as the source
	// Late ends a little later: until then unused leases are given back.
	Late context.Context //nolint:containedctx // of the background work, and as long as the source

	endCalls, endLate context.CancelFunc
	patience          time.Duration
	cause             error

	closing    sync.Once
	mu         sync.Mutex
	closed     bool // nothing new is started
	callers    sync.WaitGroup
	background sync.WaitGroup
}

// New returns a Lifetime whose Close waits for at most patience. Calls end with the cause then.
func New(patience time.Duration, cause error) *Lifetime {
	l := &Lifetime{patience: patience, cause: cause}
	l.Calls, l.endCalls = context.WithCancel(context.Background())
	l.Late, l.endLate = context.WithCancel(context.Background())
	return l
}

// Open returns the context of a call, which also ends with the Lifetime. Close waits until it is cancelled. The error
// is the cause: Close was called.
func (l *Lifetime) Open(ctx context.Context) (context.Context, context.CancelFunc, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Calls.Err() != nil {
		return nil, nil, l.cause
	}
	l.callers.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.Calls, func() { cancel(l.cause) })
	return ctx, func() {
		stop()
		cancel(nil)
		l.callers.Done()
	}, nil
}

// InBackground runs f in a goroutine for which Close waits, with the context Late. It does nothing once Close has
// waited for the callers, and returns false.
func (l *Lifetime) InBackground(f func(ctx context.Context)) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.background.Go(func() { f(l.Late) })
	return true
}

// Close ends all calls and waits for them and for the background work, then calls last; nil: nothing. It does so once.
func (l *Lifetime) Close(last func() error) (err error) {
	l.closing.Do(func() {
		l.mu.Lock()
		l.endCalls() // Open looks under mu, so no caller enters afterwards
		l.mu.Unlock()
		timer := time.AfterFunc(l.patience, l.endLate)
		defer timer.Stop()
		defer l.endLate()
		l.callersReturn()
		l.mu.Lock()
		l.closed = true
		l.mu.Unlock()
		l.background.Wait()
		if last != nil {
			err = last()
		}
	})
	return err
}

// callersReturn waits until the callers, whose context has ended, have returned.
func (l *Lifetime) callersReturn() {
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		l.callers.Wait()
	}()
	select {
	case <-returned:
	case <-l.Late.Done(): // for example, an Armer ignores its context
	}
}
