package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/pgwire"
	"github.com/fencegate/fencegate/lock"
)

// sealing arms with the seal of the session that acquires, where it is one:
// PostgreSQL got that with the startup packet, before there was a token.
type sealing struct{ lock.AllArmer }

// sessionSeal travels in an acquisition's context.
type sessionSeal struct {
	hash  []byte
	armed atomic.Bool
}

type sessionSealKey struct{}

func (a sealing) Arm(ctx context.Context, arming fence.Arming) error {
	if own, ok := ctx.Value(sessionSealKey{}).(*sessionSeal); ok {
		arming.SealHash = own.hash
		own.armed.Store(true)
	}
	return a.AllArmer.Arm(ctx, arming)
}

// sessionLeases serves the PostgreSQL port's leases.
type sessionLeases struct {
	leases             leases
	defaultTTL, maxTTL time.Duration
}

var _ pgwire.Leases = sessionLeases{}

// errForeignSeal: the source did not pass the acquisition's context to its Armer.
var errForeignSeal = errors.New("this source of leases can't arm with the seal of a session")

func (s sessionLeases) Acquire(ctx context.Context, r pgwire.LeaseRequest) (pgwire.Lease, error) {
	ttl := cmp.Or(r.TTL, s.defaultTTL)
	if ttl > s.maxTTL {
		return pgwire.Lease{}, &fence.InvalidError{Field: "ttl", Reason: fmt.Sprintf("is over the longest that is granted, %v", s.maxTTL)}
	}
	own := &sessionSeal{hash: r.SealHash}
	begun := time.Now()
	lease, err := s.leases.acquire(context.WithValue(ctx, sessionSealKey{}, own), api.Acquisition{Resource: r.Resource, TTL: ttl, Wait: r.Wait, Holder: r.Holder})
	if err != nil {
		return pgwire.Lease{}, s.refusal(ctx, r.Resource, err)
	}
	taken := pgwire.Lease{Resource: r.Resource, Token: lease.Grant.Token, Owner: lease.Owner, TTL: ttl, Since: begun, Deadline: lease.Deadline}
	if !own.armed.Load() {
		return pgwire.Lease{}, errors.Join(errForeignSeal, s.Release(context.WithoutCancel(ctx), taken))
	}
	return taken, nil
}

// refusal names the holder, where another has the resource.
func (s sessionLeases) refusal(ctx context.Context, resource string, err error) error {
	if !errors.Is(err, leasing.ErrHeld) || ctx.Err() != nil {
		return err
	}
	refusal := &pgwire.HeldError{Resource: resource}
	if held, ok := errors.AsType[*leasing.HeldError](err); ok {
		refusal.Holder, refusal.RetryAfter = held.Holder, held.RetryAfter
	}
	ctx, cancel := context.WithTimeout(ctx, fenceTimeout)
	defer cancel()
	if seen, err := s.leases.source.Inspect(ctx, resource); err == nil && seen.Locked {
		refusal.Holder, refusal.RetryAfter = seen.Holder, max(0, seen.TTL)
	}
	return refusal
}

func sessionRef(l pgwire.Lease) api.Ref {
	return api.Ref{Resource: l.Resource, Owner: l.Owner, Token: l.Token, Since: l.Since}
}

func (s sessionLeases) Renew(ctx context.Context, l pgwire.Lease) (time.Time, error) {
	valid, err := s.leases.Renew(ctx, sessionRef(l), l.TTL)
	if errors.Is(err, api.ErrLeaseLost) {
		err = fmt.Errorf("%w: %w", fence.ErrStale, err)
	}
	return time.Now().Add(valid), err
}

func (s sessionLeases) Release(ctx context.Context, l pgwire.Lease) error {
	return s.leases.Release(ctx, sessionRef(l))
}
