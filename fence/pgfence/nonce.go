package pgfence

import (
	"context"
	"fmt"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/internal/core"
)

// Nonce returns what the fence records of a nonce and a resource, so that a process whose nonce is spent need not
// wait for the lease. [Fence.Arm] makes the decision.
func (f *Fence) Nonce(ctx context.Context, resource string, nonceHash []byte) (fence.NonceRecord, error) {
	var r fence.NonceRecord
	if err := f.pool.QueryRow(ctx, core.SQLNonce, resource, nonceHash).Scan(&r.Armed, &r.Recorded, &r.Ended); err != nil {
		return fence.NonceRecord{}, fmt.Errorf("look up a nonce of %q: %w", resource, err)
	}
	return r, nil
}
