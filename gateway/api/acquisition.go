package api

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/wire"
)

// acquisition is one client's acquisition of leases.
type acquisition struct {
	s        *Server
	requests []leasing.Request
	seals    [][]fence.Seal // of each request; a new lease gets the first; nil: there is no Idempotency-Key
	since    []time.Time    // when the found leases were acquired; nil: the leases are new
}

// await acquires. A stop of the server ends the wait, and so does a change of the caller's rights: a caller that may no
// longer acquire arms nothing, any other waits again, at the end of the queue.
func (a *acquisition) await(ctx context.Context, wait time.Duration, may func() error) ([]leasing.Lease, error) {
	if wait <= 0 { // no wait
		return a.awaitUnless(ctx, ctx, 0)
	}
	asks, until := access.Of(ctx), time.Now().Add(wait)
	for {
		rights, cancel := asks.Lasts(context.WithoutCancel(ctx))
		all, err := a.awaitUnless(ctx, rights, wait)
		changed := rights.Err() != nil
		cancel()
		if err == nil || !changed {
			return all, err
		}
		asks = asks.Changed() // before the check, so that no change is missed
		if denied := may(); denied != nil {
			if errors.Is(err, fence.ErrUnknown) {
				denied = fmt.Errorf("%w: %w", denied, fence.ErrUnknown)
			}
			return nil, denied
		}
		if !errors.Is(err, context.Canceled) || ctx.Err() != nil || a.s.stopping.Err() != nil {
			return nil, err
		}
		wait = max(0, time.Until(until))
	}
}

// awaitUnless is one wait, which also ends when rights does.
func (a *acquisition) awaitUnless(ctx, rights context.Context, wait time.Duration) ([]leasing.Lease, error) {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.s.stopping, cancel)()
	defer context.AfterFunc(rights, cancel)()
	all, err := a.acquire(waiting, wait)
	if err != nil && ctx.Err() == nil && a.s.stopping.Err() != nil && errors.Is(err, context.Canceled) {
		return nil, &leasing.UnavailableError{Part: wire.PartGateway, Cause: fmt.Errorf("shutting down: %w", err)} // err says whether the outcome is unknown
	}
	return all, err
}

// acquire acquires, or finds the leases of an earlier request with the key.
func (a *acquisition) acquire(ctx context.Context, wait time.Duration) ([]leasing.Lease, error) {
	if a.seals == nil {
		return a.take(ctx, wait)
	}
	// Look only before or after the acquisition, not during it: it may have armed and still give the lease back. If the
	// first look gets no answer, the last one finds an earlier lease: its lock keeps the acquisition from getting another.
	if wait > 0 {
		if found, err := a.look(ctx); err == nil && found != nil {
			return found, nil
		}
	}
	all, err := a.take(ctx, wait)
	if err == nil {
		a.since = nil
		for i := range all {
			all[i].Grant.Seal = a.seals[i][0]
		}
		return all, nil
	}
	// An earlier request that waits at another gateway may have acquired the leases meanwhile.
	if errors.Is(err, leasing.ErrHeld) && ctx.Err() == nil {
		found, unknown := a.look(ctx)
		if unknown != nil && ctx.Err() == nil {
			return nil, halfDone(unknown, repeatHint) // perhaps the key itself holds them
		}
		if found != nil {
			return found, nil
		}
	}
	return nil, err
}

// take acquires within a time.
func (a *acquisition) take(ctx context.Context, wait time.Duration) ([]leasing.Lease, error) {
	within := ctx
	if wait > 0 {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	all, err := a.s.cfg.Leases.Acquire(within, wait > 0, a.requests...)
	return all, leaseError(ctx, err)
}

// failed returns the error of an acquisition for its client. A repeat with the key finds what may have been acquired.
func (a *acquisition) failed(err error) error {
	if a.seals == nil || !errors.Is(err, fence.ErrUnknown) {
		return err
	}
	return halfDone(err, repeatHint)
}

// sinceOf returns when a lease was acquired.
func (a *acquisition) sinceOf(i int) time.Time {
	if a.since == nil {
		return time.Now()
	}
	return a.since[i]
}
