package lock

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// Source is the Locker without anything of Redis in it, for code that takes its
// leases from any kind of source. Its leases have no timers and no handles in
// this process: their deadline is all there is, and [Metrics] hears of no end of
// theirs, since any process may be the one that ends them. Closing it closes the
// Locker. It is safe for concurrent use.
func (l *Locker) Source() leasing.Source { return source{l} }

type source struct{ l *Locker }

var _ leasing.Source = source{}

func (s source) TryAcquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	return s.lease(ctx, r, s.l.tryAcquire)
}

func (s source) Acquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	return s.lease(ctx, r, s.l.acquire)
}

func (s source) lease(
	ctx context.Context, r leasing.Request, acquire func(context.Context, string, acquireOptions) (*attempt, error),
) (leasing.Lease, error) {
	opts := []AcquireOption{WithTTL(r.TTL)}
	if r.Holder != "" {
		opts = append(opts, WithHolder(r.Holder))
	}
	o, err := s.l.options(r.Resource, opts)
	if err == nil {
		err = validateSealHash(r.SealHash)
	}
	if err != nil {
		return leasing.Lease{}, err
	}
	o.sealHash = r.SealHash
	a, err := acquire(ctx, r.Resource, o)
	if err != nil {
		return leasing.Lease{}, sourceError(err)
	}
	return leasing.Lease{
		Grant: fence.Grant{Resource: a.resource, Token: a.token, Seal: a.seal}, Owner: a.owner,
		Deadline: time.Now().Add(a.deadline.left()),
	}, nil
}

func (s source) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (time.Duration, error) {
	valid, err := s.l.Extend(ctx, ref, ttl)
	return valid, sourceError(err)
}

func (s source) Release(ctx context.Context, ref leasing.Ref) error {
	err := s.l.Release(ctx, ref)
	s.l.lines.free(ref.Resource)
	return sourceError(err)
}

func (s source) Inspect(ctx context.Context, resource string) (leasing.Inspection, error) {
	ins, err := s.l.Inspect(ctx, resource)
	return ins, sourceError(err)
}

func (s source) Ready(ctx context.Context) error { return sourceError(s.l.Ping(ctx)) }

func (s source) Close() error { return s.l.Close() }

// sourceError says the package's errors in the words of a source. Those of the
// context and of the Armer stay as they are.
func sourceError(err error) error {
	var as error
	switch {
	case err == nil, errors.Is(err, fence.ErrInvalid):
		return err
	case errors.Is(err, ErrClosed):
		return ErrClosed // also where it ended a wait: nobody need hear who held the resource
	case errors.Is(err, ErrHeld):
		return err
	case errors.Is(err, fence.ErrNotRaised): // overtaken by another acquisition again and again
		as = leasing.ErrHeld
	case errors.Is(err, ErrNoQuorum), errors.Is(err, ErrQuarantined), errors.Is(err, ErrNodeTimeout), errors.Is(err, ErrExhausted):
		as = leasing.ErrUnavailable
	case errors.Is(err, ErrReleased):
		as = leasing.ErrLost
	default:
		return err
	}
	return fmt.Errorf("%w: %w", as, err)
}

// validateSealHash refuses what no seal has as its hash.
func validateSealHash(hash []byte) error {
	if hash != nil && len(hash) != sha256.Size {
		return &fence.InvalidError{Field: "seal hash", Reason: fmt.Sprintf("is %d bytes long; a SHA-256 has %d", len(hash), sha256.Size)}
	}
	return nil
}
