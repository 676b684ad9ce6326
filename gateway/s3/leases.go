package s3

import (
	"context" //nolint:gosec // S3 defines the ETag as the MD5 of the bytes
	//nolint:gosec // S3 defines the ETag of a multipart object by the MD5 of its parts
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/s3/s3error"
)

// Leases knows which leases are held. The fence refuses the grant of a released lease at once, but that of an expired
// one only after [Leases.Held] was called.
type Leases interface {
	// Held reports for how long a lease is held from now on, unless it is released. Zero: it is over, and the fence
	// refuses its grant. After an error the state is unknown, and nothing was changed. [ErrLockAway] comes with the time
	// for which the fence alone decides.
	Held(ctx context.Context, resource string, token fence.Token) (time.Duration, error)
	// Current reports for how long the lease with this token is certainly held. Zero: it is over, or another client has
	// the resource. After an error the state is unknown.
	Current(ctx context.Context, resource string, token fence.Token) (time.Duration, error)
}

// ErrLockAway says that the lock did not answer.
var ErrLockAway = errors.New("the lock did not answer")

// held caches until when leases are held, so that not every request asks. Safe for concurrent use.
type held struct {
	ask func(ctx context.Context, resource string, token fence.Token) (time.Duration, error) // nil: all are held

	mu    sync.Mutex
	until map[leaseID]time.Time
}

type leaseID struct {
	resource string
	token    fence.Token
}

// maxHeld bounds the cache.
const maxHeld = 4096

// newHeld returns the caches for writes and for reads. The commit refuses the grant of a lease that is not held, after
// it has looked for an earlier attempt of the request.
func newHeld(leases Leases) (writes, reads *held) {
	if leases == nil {
		return new(held), new(held)
	}
	return &held{ask: leases.Held}, &held{ask: leases.Current}
}

// check reports whether a lease is held.
func (h *held) check(ctx context.Context, p objects.Proof) (bool, error) {
	id := leaseID{p.Resource, p.Token}
	if h.ask == nil || h.remembers(id) {
		return true, nil
	}
	began := time.Now()
	left, err := h.ask(ctx, p.Resource, p.Token)
	if err != nil && !errors.Is(err, ErrLockAway) {
		return false, cannotTell(p, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.until) >= maxHeld || h.until == nil {
		h.until = map[leaseID]time.Time{}
	}
	if left > 0 {
		h.until[id] = began.Add(left)
	}
	return left > 0, nil
}

// settle makes the fence refuse the grant of a lease that is over. It fails if it is unknown whether the lease is over.
func (h *held) settle(ctx context.Context, p objects.Proof) error {
	if h.ask == nil {
		return nil
	}
	_, err := h.ask(ctx, p.Resource, p.Token)
	switch {
	case errors.Is(err, ErrLockAway):
		return s3error.Unavailable(s3error.MessageLockAway)
	case err != nil:
		return cannotTell(p, err)
	}
	return nil
}

func cannotTell(p objects.Proof, err error) error {
	return fmt.Errorf("%w: can't tell whether the lease of %q is held: %w", objects.ErrDatabaseAway, p.Resource, err)
}

func (h *held) remembers(id leaseID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	until, known := h.until[id]
	if known && !time.Now().Before(until) {
		delete(h.until, id)
		return false
	}
	return known
}
