package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/primary"
	"github.com/fencegate/fencegate/wire"
)

// fences serves the API's fences from PostgreSQL.
type fences struct {
	fence    *pgfence.Fence
	source   leasing.Source
	announce func(resource string, token fence.Token)
	log      *slog.Logger
}

var _ api.Fences = fences{}

func (f fences) Inspect(ctx context.Context, resource string) (fence.Record, error) {
	record, err := f.fence.Inspect(ctx, resource)
	return record, fenceError(ctx, resource, err)
}

// Holds arms the grant again, which drains, and changes nothing if it is the current grant.
func (f fences) Holds(ctx context.Context, record fence.Record, sealHash []byte) (bool, error) {
	err := f.fence.Arm(ctx, fence.Arming{Resource: record.Resource, Token: record.Token, SealHash: sealHash, Holder: record.Holder})
	if errors.Is(err, fence.ErrNotRaised) {
		return false, nil
	}
	return err == nil, fenceError(ctx, record.Resource, err)
}

func (f fences) List(ctx context.Context, prefix, after string, limit int) ([]fence.Record, error) {
	found, err := f.fence.List(ctx, prefix, after, limit)
	return found, fenceError(ctx, prefix, err)
}

func (f fences) Revoke(ctx context.Context, resource, by string, seen fence.Token) (fence.Token, error) {
	held := f.holder(ctx, resource)
	if seen > 0 {
		return f.revokeToken(ctx, resource, by, seen, held)
	}
	token, err := f.fence.Revoke(ctx, resource, by)
	if token > 0 {
		f.announce(resource, token)
		f.evict(ctx, held)
	}
	if errors.Is(err, fence.ErrNotRaised) {
		err = nil // another caller raised it further; the holder is out
	}
	return token, fenceError(ctx, resource, err)
}

// revokeToken raises the fence to the token after seen. PostgreSQL refuses that if another caller has raised it in the
// meantime. It frees the lock only if the holder has the token seen.
func (f fences) revokeToken(ctx context.Context, resource, by string, seen fence.Token, held leasing.Ref) (fence.Token, error) {
	token := seen + 1
	err := f.fence.Arm(ctx, fence.Arming{Resource: resource, Token: token, SealHash: fence.NewSeal().Hash(), Holder: by})
	undrained, late := errors.AsType[*fence.UndrainedError](err)
	if err == nil || late && undrained.Token == token {
		f.announce(resource, token)
		if held.Token == seen {
			f.evict(ctx, held)
		}
	}
	if errors.Is(err, fence.ErrNotRaised) {
		return 0, err
	}
	return token, fenceError(ctx, resource, err)
}

// inspectTimeout bounds how long a revocation waits to learn who holds the lock.
const inspectTimeout = 500 * time.Millisecond

// holder returns the holder of a resource's lock; its Owner is "" if the source does not know one.
func (f fences) holder(ctx context.Context, resource string) leasing.Ref {
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	seen, err := leasing.One(f.source.Inspect(ctx, resource))
	if err != nil {
		f.log.Warn("failed to learn who holds a resource that is revoked; its lock expires at its TTL", "resource", resource, "error", err)
	}
	return leasing.Ref{Resource: resource, Owner: seen.Owner, Token: seen.Token}
}

// evict frees the lock of a holder whose grant has been revoked, so that others need not wait for its TTL. held was
// read before the fence was raised, so a later holder keeps its lock.
func (f fences) evict(ctx context.Context, held leasing.Ref) {
	if held.Owner == "" {
		return
	}
	if err := f.source.Release(ctx, held); err != nil && !errors.Is(err, leasing.ErrLost) {
		f.log.Warn("failed to release the lock of a revoked holder; it expires at its TTL", "resource", held.Resource, "error", err)
	}
}

func fenceError(ctx context.Context, resource string, err error) error {
	switch {
	case errors.Is(err, fence.ErrNoFence):
		return fmt.Errorf("%w: %q has never been acquired", api.ErrNotFound, resource)
	case errors.Is(err, fence.ErrUnknown), errors.Is(err, fence.ErrUndrained): // even if a later attempt did not connect
		return err
	case primary.Unconnected(err):
		return &leasing.UnavailableError{Part: wire.PartPostgres, Cause: err}
	case err == nil, ctx.Err() != nil, errors.Is(err, fence.ErrInvalid):
		return err
	}
	return &leasing.UnavailableError{Part: wire.PartPostgres, Cause: err}
}
