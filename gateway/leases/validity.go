package leases

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// Validity reports to the S3 port which leases are held, and makes the fence refuse the grants of leases that expired.
type Validity struct {
	Source leasing.Source
	Fence  interface {
		End(ctx context.Context, e fence.Ending) error
		Inspect(ctx context.Context, resource string) (fence.Record, error)
	}
	Away error // is joined to the error of a lock that does not answer
}

const (
	validityTimeout = 2 * time.Second
	unsure          = time.Second // before the next question to a lock that did not answer or whose leases have no end
	readsFor        = time.Second // before the next question for a lease that only reads
)

// Remaining reports for how long a lease is held. If the lock does not answer, the fence alone decides: nobody can acquire
// then. If another client has the lock, its arming refuses the grant before that client reads.
func (v Validity) Remaining(ctx context.Context, resource string, token fence.Token) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, validityTimeout)
	defer cancel()
	state, err := leasing.One(v.Source.Inspect(ctx, resource))
	switch {
	case err != nil:
		return unsure, fmt.Errorf("%w: %w", v.Away, err)
	case state.Locked && state.TTL < 0:
		return unsure, nil
	case state.Locked:
		return max(state.TTL, time.Millisecond), nil
	}
	err = v.Fence.End(ctx, fence.Ending{Resource: resource, Token: token})
	if errors.Is(err, fence.ErrStale) || errors.Is(err, fence.ErrNeverIssued) {
		err = nil // the fence refuses it as it is
	}
	return 0, err
}

// Current reports for how long the lease with this token is certainly held. If the lock does not answer, the fence alone
// decides, as in Remaining.
func (v Validity) Current(ctx context.Context, resource string, token fence.Token) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, validityTimeout)
	defer cancel()
	record, err := v.Fence.Inspect(ctx, resource)
	switch {
	case errors.Is(err, fence.ErrNoFence):
		return 0, nil
	case err != nil:
		return 0, err
	case record.Token != token || record.EndedAt != nil:
		return 0, nil
	}
	state, err := leasing.One(v.Source.Inspect(ctx, resource))
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
