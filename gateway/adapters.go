package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

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
type leases struct {
	locker *lock.Locker
	fence  *pgfence.Fence
	log    *slog.Logger
}

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
	overtaken := make(chan bool, 1)
	go func() { overtaken <- l.overtaken(ctx, ref) }()
	valid, err := l.locker.Extend(ctx, lock.Ref(ref), ttl)
	end := time.Now().Add(valid)
	if <-overtaken && ctx.Err() == nil {
		if err == nil { // nobody can use it, so nobody need wait for its end
			if err := l.Release(ctx, ref); err != nil {
				l.log.Warn("the lock of a lease that was revoked could not be released; it ends by itself", "resource", ref.Resource, "token", ref.Token, "error", err)
			}
		}
		return 0, fmt.Errorf("%w: the fence of %q stands above its token %d", api.ErrLeaseLost, ref.Resource, ref.Token)
	}
	return time.Until(end), leaseError(ctx, ref.Resource, err)
}

// fenceTimeout bounds how long a renewal waits for the fence's word. It goes on
// without it: PostgreSQL may be away, and the fence guards the writes in any case.
const fenceTimeout = 500 * time.Millisecond

// overtaken reports whether the fence is known to stand above the lease's token:
// it was revoked, or another acquired the resource.
func (l leases) overtaken(ctx context.Context, ref api.Ref) bool {
	ctx, cancel := context.WithTimeout(ctx, fenceTimeout)
	defer cancel()
	record, err := l.fence.Inspect(ctx, ref.Resource)
	return err == nil && record.Token > ref.Token
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
		return &api.HeldError{Resource: resource, Holder: held.Holder, RetryAfter: held.RetryAfter}
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
type fences struct {
	fence *pgfence.Fence
	tell  func(resource string, token fence.Token)
}

var _ api.Fences = fences{}

func (f fences) Inspect(ctx context.Context, resource string) (api.FenceRecord, error) {
	record, err := f.fence.Inspect(ctx, resource)
	return api.FenceRecord(record), fenceError(ctx, resource, err)
}

func (f fences) List(ctx context.Context, prefix, after string, limit int) ([]api.FenceRecord, error) {
	found, err := f.fence.List(ctx, prefix, after, limit)
	records := make([]api.FenceRecord, len(found))
	for i, record := range found {
		records[i] = api.FenceRecord(record)
	}
	return records, fenceError(ctx, prefix, err)
}

func (f fences) Revoke(ctx context.Context, resource, by string) (fence.Token, error) {
	token, err := f.fence.Revoke(ctx, resource, by)
	if token > 0 {
		f.tell(resource, token)
	}
	if errors.Is(err, fence.ErrNotRaised) {
		err = nil // raised further by another already: the holder is out all the same
	}
	return token, fenceError(ctx, resource, err)
}

func fenceError(ctx context.Context, resource string, err error) error {
	switch {
	case errors.Is(err, pgfence.ErrNoFence):
		return fmt.Errorf("%w: %q has never been acquired", api.ErrNotFound, resource)
	case isUnconnected(err):
		return &api.UnavailableError{Part: partPostgres, Cause: err}
	case err == nil, ctx.Err() != nil, errors.Is(err, fence.ErrInvalid), errors.Is(err, fence.ErrUndrained), errors.Is(err, fence.ErrUnknown):
		return err
	}
	return &api.UnavailableError{Part: partPostgres, Cause: err}
}

// isUnconnected reports whether a statement was never sent, so that its outcome
// is known: nothing was done.
func isUnconnected(err error) bool {
	_, unconnected := errors.AsType[*pgconn.ConnectError](err)
	return unconnected
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
