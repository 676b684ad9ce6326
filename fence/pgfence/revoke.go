package pgfence

import (
	"context"
	"fmt"

	"github.com/fencegate/fencegate/fence"
)

// Revoke arms a resource past its holder, to a seal that nobody knows: the
// holder's writes are refused from then on, and the next acquisition gets a
// higher token. holder is for people: who revoked. It returns the new token, or
// [fence.ErrNoFence]. A [*fence.UndrainedError] comes with the token: the fence is
// raised, but a transaction of the old holder may still commit.
func (f *Fence) Revoke(ctx context.Context, resource, holder string) (fence.Token, error) {
	if err := (fence.Arming{Resource: resource, Token: 1, Holder: holder}).Validate(); err != nil {
		return 0, err // before anything is raised
	}
	conn, err := f.pool.Acquire(ctx)
	if err != nil {
		return 0, fmt.Errorf("revoke %q: %w", resource, err)
	}
	var token *int64
	var sealHash []byte
	err = conn.QueryRow(ctx, sqlRevoke, resource, holder).Scan(&token, &sealHash)
	conn.Release()
	if err != nil {
		if ended(err) {
			return 0, fmt.Errorf("revoke %q: %w", resource, Translate(err))
		}
		return 0, fmt.Errorf("revoke %q: %w: %w", resource, fence.ErrUnknown, err)
	}
	if token == nil {
		return 0, fmt.Errorf("revoke %q: %w", resource, fence.ErrNoFence)
	}
	raised := fence.Token(*token)
	// Arming what is recorded already raises nothing and drains.
	return raised, f.Arm(ctx, fence.Arming{Resource: resource, Token: raised, SealHash: sealHash, Holder: holder})
}
