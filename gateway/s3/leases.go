package s3

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// Leases knows which leases are held. The fence refuses the grant of a released lease at once, but that of an expired
// one only after [Leases.Remaining] was called.
type Leases interface {
	// Remaining reports for how long a lease is held from now on, unless it is released. Zero: it is over, and the
	// fence refuses its grant. After an error the state is unknown, and nothing was changed. [ErrLockAway] comes with
	// the time for which the fence alone decides.
	Remaining(ctx context.Context, resource string, token fence.Token) (time.Duration, error)
	// Current reports for how long the lease with this token is certainly held. Zero: it is over, or another client has
	// the resource. After an error the state is unknown.
	Current(ctx context.Context, resource string, token fence.Token) (time.Duration, error)
}

// ErrLockAway says that the lock did not answer.
var ErrLockAway = errors.New("the lock did not answer")

// leaseCache caches until when leases are held, so that not every request asks. Safe for concurrent use.
type leaseCache struct {
	ask func(ctx context.Context, resource string, token fence.Token) (time.Duration, error) // nil: all are held

	mu    sync.Mutex
	until map[leaseID]time.Time
}

type leaseID struct {
	resource string
	token    fence.Token
}

// maxLeases bounds the cache.
const maxLeases = 4096

// newLeaseCaches returns the caches for writes and for reads. The commit refuses the grant of a lease that is not held,
// after it has looked for an earlier attempt of the request.
func newLeaseCaches(leases Leases) (writes, reads *leaseCache) {
	if leases == nil {
		return new(leaseCache), new(leaseCache)
	}
	return &leaseCache{ask: leases.Remaining}, &leaseCache{ask: leases.Current}
}

// check reports whether a lease is held.
func (c *leaseCache) check(ctx context.Context, p objects.Proof) (bool, error) {
	id := leaseID{p.Resource, p.Token}
	if c.ask == nil || c.caches(id) {
		return true, nil
	}
	began := time.Now()
	left, err := c.ask(ctx, p.Resource, p.Token)
	if err != nil && !errors.Is(err, ErrLockAway) {
		return false, leaseUnknown(p, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.until) >= maxLeases || c.until == nil {
		c.until = map[leaseID]time.Time{}
	}
	if left > 0 {
		c.until[id] = began.Add(left)
	}
	return left > 0, nil
}

// settle makes the fence refuse the grant of a lease that is over. It fails if it is unknown whether the lease is over.
func (c *leaseCache) settle(ctx context.Context, p objects.Proof) error {
	if c.ask == nil {
		return nil
	}
	_, err := c.ask(ctx, p.Resource, p.Token)
	switch {
	case errors.Is(err, ErrLockAway):
		return s3error.Unavailable(s3error.MessageLockAway)
	case err != nil:
		return leaseUnknown(p, err)
	}
	return nil
}

func leaseUnknown(p objects.Proof, err error) error {
	return fmt.Errorf("%w: can't tell whether the lease of %q is held: %w", objects.ErrDatabaseAway, p.Resource, err)
}

func (c *leaseCache) caches(id leaseID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	until, known := c.until[id]
	if known && !time.Now().Before(until) {
		delete(c.until, id)
		return false
	}
	return known
}
