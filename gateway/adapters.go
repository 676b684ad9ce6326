package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/gateway/s3"
)

// Parts that may be unavailable.
const (
	partPostgres = "postgresql"
	partRedis    = "redis"
)

// leases serves the API's leases from their source, which arms the fence.
type leases struct {
	source  leasing.Source
	fence   *pgfence.Fence
	metrics *lockMetrics
	log     *slog.Logger
}

var _ api.Leases = leases{}

func (l leases) Acquire(ctx context.Context, req api.Acquisition) (api.Lease, error) {
	lease, err := l.acquire(ctx, req)
	if err != nil {
		return api.Lease{}, leaseError(ctx, req.Resource, err)
	}
	return api.Lease{Grant: lease.Grant, Owner: lease.Owner, TTL: req.TTL, Valid: time.Until(lease.Deadline)}, nil
}

func (l leases) acquire(ctx context.Context, req api.Acquisition) (leasing.Lease, error) {
	r := leasing.Request{Resource: req.Resource, TTL: req.TTL, Holder: req.Holder}
	if req.Wait <= 0 {
		return l.source.TryAcquire(ctx, r)
	}
	ctx, cancel := context.WithTimeout(ctx, req.Wait)
	defer cancel()
	return l.source.Acquire(ctx, r)
}

func refOf(ref api.Ref) leasing.Ref {
	return leasing.Ref{Resource: ref.Resource, Owner: ref.Owner, Token: ref.Token}
}

func (l leases) Renew(ctx context.Context, ref api.Ref, ttl time.Duration) (time.Duration, error) {
	overtaken := make(chan bool, 1)
	go func() { overtaken <- l.overtaken(ctx, ref) }()
	valid, err := l.source.Extend(ctx, refOf(ref), ttl)
	end := time.Now().Add(valid)
	if <-overtaken && ctx.Err() == nil {
		if err == nil { // nobody can use it, so nobody need wait for its end
			if err := l.source.Release(ctx, refOf(ref)); err != nil && !errors.Is(err, leasing.ErrLost) {
				l.log.Warn("the lock of a lease that was revoked could not be released; it ends by itself", "resource", ref.Resource, "token", ref.Token, "error", err)
			}
		}
		l.ended(ref, true)
		return 0, fmt.Errorf("%w: the fence of %q stands above its token %d", api.ErrLeaseLost, ref.Resource, ref.Token)
	}
	if errors.Is(err, leasing.ErrLost) {
		l.ended(ref, true)
	}
	return time.Until(end), leaseError(ctx, ref.Resource, err)
}

// ended tells how long a lease was held, from its handle: another replica may
// have acquired it.
func (l leases) ended(ref api.Ref, lost bool) {
	if !ref.Since.IsZero() {
		l.metrics.Ended(max(0, time.Since(ref.Since)), lost)
	}
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
	err := l.source.Release(ctx, refOf(ref))
	switch {
	case errors.Is(err, leasing.ErrLost):
		return nil // over already
	case err == nil:
		l.ended(ref, false)
	}
	return leaseError(ctx, ref.Resource, err)
}

func (l leases) Lock(ctx context.Context, resource string) (api.LockState, error) {
	seen, err := l.source.Inspect(ctx, resource)
	state := api.LockState{Locked: seen.Locked, Holder: seen.Holder, Token: seen.Token, TTL: seen.TTL, Waiters: seen.Waiters}
	for _, m := range seen.Members {
		state.Members = append(state.Members, api.LockMember(m))
	}
	return state, leaseError(ctx, resource, err)
}

// leaseError turns the errors of a source, and those of arming, into the API's.
// ctx is the request's.
func leaseError(ctx context.Context, resource string, err error) error {
	var held *leasing.HeldError
	var unavailable *api.UnavailableError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return errors.Join(ctx.Err(), err)
	case errors.As(err, &unavailable): // arming said so itself
		return unavailable
	case errors.As(err, &held):
		return &api.HeldError{Resource: resource, Holder: held.Holder, RetryAfter: held.RetryAfter}
	case errors.Is(err, leasing.ErrHeld): // overtaken by another acquisition
		return &api.HeldError{Resource: resource}
	case errors.Is(err, fence.ErrInvalid), errors.Is(err, fence.ErrUndrained):
		return err
	case errors.Is(err, leasing.ErrUnavailable), errors.Is(err, leasing.ErrClosed):
		return &api.UnavailableError{Part: partRedis, Cause: err}
	case errors.Is(err, leasing.ErrLost):
		return fmt.Errorf("%w: %w", api.ErrLeaseLost, err)
	}
	return &api.UnavailableError{Part: partPostgres, Cause: err} // what is left comes from arming
}

// fences serves the API's fences from PostgreSQL.
type fences struct {
	fence  *pgfence.Fence
	source leasing.Source
	tell   func(resource string, token fence.Token)
	log    *slog.Logger
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
	held := f.holder(ctx, resource)
	token, err := f.fence.Revoke(ctx, resource, by)
	if token > 0 {
		f.tell(resource, token)
		f.evict(ctx, held)
	}
	if errors.Is(err, fence.ErrNotRaised) {
		err = nil // raised further by another already: the holder is out all the same
	}
	return token, fenceError(ctx, resource, err)
}

// holder is who holds the lock of a resource, as far as the source knows: "".
func (f fences) holder(ctx context.Context, resource string) leasing.Ref {
	ctx, cancel := context.WithTimeout(ctx, fenceTimeout)
	defer cancel()
	seen, _ := f.source.Inspect(ctx, resource)
	return leasing.Ref{Resource: resource, Owner: seen.Owner, Token: seen.Token}
}

// evict frees the lock of a holder whose grant has been revoked, so that nobody
// waits for its end. It was looked at before the fence was raised: whoever holds
// the lock by now is left alone.
func (f fences) evict(ctx context.Context, held leasing.Ref) {
	if held.Owner == "" {
		return
	}
	if err := f.source.Release(ctx, held); err != nil && !errors.Is(err, leasing.ErrLost) {
		f.log.Warn("the lock of a holder that was revoked could not be freed; it ends by itself", "resource", held.Resource, "error", err)
	}
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

// sessions serves the API's sessions from the PostgreSQL port.
type sessions struct{ server *pgwire.Server }

var _ api.Sessions = sessions{}

func (s sessions) List() []api.Session {
	open := s.server.Sessions()
	all := make([]api.Session, len(open))
	for i, one := range open {
		all[i] = api.Session(one)
	}
	return all
}

func (s sessions) End(id string) bool { return s.server.End(id) }
