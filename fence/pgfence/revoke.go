package pgfence

import (
	"context"
	"fmt"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// Revoke arms a resource past its holder, to a seal that is discarded: the holder's writes are refused from then on,
// and the next acquisition gets a higher token. holder is the name of the operator, for display. Revoke returns the
// new token, or [fence.ErrNoFence]. A [*fence.UndrainedError] comes with the token: the fence is raised, but a
// transaction of the old holder may still commit.
func (f *Fence) Revoke(ctx context.Context, resource, holder string) (fence.Token, error) {
	if err := core.ValidateRevocation(resource, holder); err != nil {
		return 0, err
	}
	conn, err := f.pool.Acquire(ctx)
	if err != nil {
		return 0, fmt.Errorf("revoke %q: %w", resource, err)
	}
	var token *int64
	var sealHash []byte
	err = conn.QueryRow(ctx, core.SQLRevoke, resource, holder).Scan(&token, &sealHash)
	conn.Release()
	if err := reports.Revoked(resource, token != nil, err); err != nil {
		return 0, err
	}
	raised := fence.Token(*token)
	// The fence holds this token already, so arming only drains.
	err = f.Arm(ctx, fence.Arming{Resource: resource, Token: raised, SealHash: sealHash, Holder: holder})
	return raised, core.Drained(resource, raised, err)
}
