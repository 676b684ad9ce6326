package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/s3"
	"github.com/fencegate/fencegate/lock"
)

// Parts that may be unavailable.
const (
	partPostgres = "postgresql"
	partRedis    = "redis"
)

// leases serves the API's leases from the lock, which arms the fence.
type leases struct{ locker *lock.Locker }

var _ api.Leases = leases{}

func (l leases) Acquire(ctx context.Context, req api.Acquisition) (api.Lease, error) {
	opts := []lock.AcquireOption{lock.WithTTL(req.TTL)}
	if req.Holder != "" {
		opts = append(opts, lock.WithHolder(req.Holder))
	}
	lease, err := l.acquire(ctx, req, opts)
	if err != nil {
		return api.Lease{}, leaseError(ctx, req.Resource, err)
	}
	grant, err := lease.Grant()
	if err != nil {
		return api.Lease{}, leaseError(ctx, req.Resource, err)
	}
	return api.Lease{Grant: grant, Owner: lease.Ref().Owner, TTL: req.TTL, Valid: time.Until(lease.Deadline())}, nil
}

func (l leases) acquire(ctx context.Context, req api.Acquisition, opts []lock.AcquireOption) (*lock.Lease, error) {
	if req.Wait <= 0 {
		return l.locker.TryAcquire(ctx, req.Resource, opts...)
	}
	ctx, cancel := context.WithTimeout(ctx, req.Wait)
	defer cancel()
	return l.locker.Acquire(ctx, req.Resource, opts...)
}

func (l leases) Renew(ctx context.Context, ref api.Ref, ttl time.Duration) (time.Duration, error) {
	valid, err := l.locker.Extend(ctx, lock.Ref(ref), ttl)
	return valid, leaseError(ctx, ref.Resource, err)
}

func (l leases) Release(ctx context.Context, ref api.Ref) error {
	err := l.locker.Release(ctx, lock.Ref(ref))
	if errors.Is(err, lock.ErrLost) {
		return nil // over already
	}
	return leaseError(ctx, ref.Resource, err)
}

func (l leases) Locked(ctx context.Context, resource string) (bool, error) {
	seen, err := l.locker.Inspect(ctx, resource)
	return seen.Locked, leaseError(ctx, resource, err)
}

// leaseError turns the lock's errors, and those of arming, into the API's. ctx
// is the request's.
func leaseError(ctx context.Context, resource string, err error) error {
	var held *lock.HeldError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return errors.Join(ctx.Err(), err)
	case errors.As(err, &held):
		return &api.HeldError{Resource: resource, RetryAfter: held.RetryAfter}
	case errors.Is(err, lock.ErrHeld), errors.Is(err, fence.ErrNotRaised): // overtaken by another acquisition
		return &api.HeldError{Resource: resource}
	case errors.Is(err, fence.ErrInvalid), errors.Is(err, fence.ErrUndrained):
		return err
	case errors.Is(err, lock.ErrNoQuorum), errors.Is(err, lock.ErrQuarantined), errors.Is(err, lock.ErrNodeTimeout), errors.Is(err, lock.ErrExhausted), errors.Is(err, lock.ErrClosed):
		return &api.UnavailableError{Part: partRedis, Cause: err}
	case errors.Is(err, lock.ErrLost), errors.Is(err, lock.ErrReleased):
		return fmt.Errorf("%w: %w", api.ErrLeaseLost, err)
	}
	return &api.UnavailableError{Part: partPostgres, Cause: err} // what is left comes from arming
}

// fences serves the API's fences from PostgreSQL.
type fences struct{ fence *pgfence.Fence }

var _ api.Fences = fences{}

func (f fences) Inspect(ctx context.Context, resource string) (api.FenceRecord, error) {
	record, err := f.fence.Inspect(ctx, resource)
	switch {
	case err == nil:
		return api.FenceRecord(record), nil
	case errors.Is(err, pgfence.ErrNoFence):
		return api.FenceRecord{}, fmt.Errorf("%w: %q has never been acquired", api.ErrNotFound, resource)
	case ctx.Err() != nil, errors.Is(err, fence.ErrInvalid):
		return api.FenceRecord{}, err
	}
	return api.FenceRecord{}, &api.UnavailableError{Part: partPostgres, Cause: err}
}

// credentials serves the API's S3 credentials from the keyring.
type credentials struct{ keyring *s3.Keyring }

var _ api.Credentials = credentials{}

func (c credentials) Issue(resource string, token fence.Token, expires time.Time) (api.S3Credentials, error) {
	issued, err := c.keyring.Issue(resource, token, expires)
	if err != nil {
		return api.S3Credentials{}, err
	}
	return api.S3Credentials{
		AccessKeyID: issued.AccessKeyID, SecretAccessKey: issued.SecretAccessKey,
		SessionToken: issued.SessionToken, Expires: issued.Expires,
	}, nil
}

// buckets serves the API's buckets from the S3 gateway.
type buckets struct{ server *s3.Server }

var _ api.Buckets = buckets{}

func (b buckets) EnsureBucket(ctx context.Context, name, text string) (bool, error) {
	rule, err := s3.ParseRule(text)
	if err != nil {
		return false, err
	}
	created, err := b.server.EnsureBucket(ctx, name, rule)
	switch {
	case err == nil, ctx.Err() != nil, errors.Is(err, fence.ErrInvalid):
		return created, err
	case errors.Is(err, s3.ErrRuleInUse):
		return false, fmt.Errorf("%w: %w", api.ErrConflict, s3.ErrRuleInUse)
	}
	return false, &api.UnavailableError{Part: partPostgres, Cause: err}
}
