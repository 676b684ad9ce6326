package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/s3"
)

// held reports to the S3 port which leases are held, and makes the fence refuse the grants of leases that expired.
type held struct {
	source leasing.Source
	fence  ender
}

// ender is what held needs of the fence.
type ender interface {
	End(ctx context.Context, e fence.Ending) error
	Inspect(ctx context.Context, resource string) (fence.Record, error)
}

var _ s3.Leases = held{}

const (
	heldTimeout = 2 * time.Second
	unsure      = time.Second // before the next question to a lock that did not answer or whose leases have no end
	readsFor    = time.Second // before the next question for a lease that only reads
)

// Remaining implements [s3.Leases]. If the lock does not answer, the fence alone decides: nobody can acquire then. If
// another client has the lock, its arming refuses the grant before that client reads.
func (h held) Remaining(ctx context.Context, resource string, token fence.Token) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, heldTimeout)
	defer cancel()
	state, err := leasing.One(h.source.Inspect(ctx, resource))
	switch {
	case err != nil:
		return unsure, fmt.Errorf("%w: %w", s3.ErrLockAway, err)
	case state.Locked && state.TTL < 0:
		return unsure, nil
	case state.Locked:
		return max(state.TTL, time.Millisecond), nil
	}
	err = h.fence.End(ctx, fence.Ending{Resource: resource, Token: token})
	if errors.Is(err, fence.ErrStale) || errors.Is(err, fence.ErrNeverIssued) {
		err = nil // the fence refuses it as it is
	}
	return 0, err
}

// Current implements [s3.Leases]. If the lock does not answer, the fence alone decides, as in Remaining.
func (h held) Current(ctx context.Context, resource string, token fence.Token) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, heldTimeout)
	defer cancel()
	record, err := h.fence.Inspect(ctx, resource)
	switch {
	case errors.Is(err, fence.ErrNoFence):
		return 0, nil
	case err != nil:
		return 0, err
	case record.Token != token || record.EndedAt != nil:
		return 0, nil
	}
	state, err := leasing.One(h.source.Inspect(ctx, resource))
	switch {
	case err != nil:
		return unsure, nil //nolint:nilerr // see above
	case !state.Locked:
		return 0, nil
	case state.TTL < 0:
		return readsFor, nil
	}
	return min(readsFor, max(state.TTL, time.Millisecond)), nil
}
