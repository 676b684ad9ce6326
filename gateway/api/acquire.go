package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/wire"
)

const (
	// maxResources is how many leases one request may ask for.
	maxResources = 100

	repeatHint = "Whether it was done is unknown. Repeat the request with the same Idempotency-Key, here or at another gateway."
)

func (l *leaseCalls) acquire(c echo.Context) error {
	began := time.Now()
	var body wire.AcquireRequest
	if err := decode(c, &body); err != nil {
		return err
	}
	request, wait, err := l.requestOf(body.Resource, body.Holder, body.TTL, body.Wait)
	if err != nil {
		return err
	}
	return l.grant(c, began, []leasing.Request{request}, wait, func(all []wire.Lease) any { return all[0] })
}

// grant acquires leases and answers with them.
func (l *leaseCalls) grant(c echo.Context, began time.Time, requests []leasing.Request, wait time.Duration, answer func(all []wire.Lease) any) error {
	may := func() error {
		for _, r := range requests {
			if err := checkRight(c, access.Acquire, r.Resource); err != nil {
				return err
			}
		}
		return nil
	}
	if err := may(); err != nil {
		return err
	}
	acquisition, err := l.newAcquisition(c, requests)
	if err != nil {
		return err
	}
	all, err := acquisition.await(c.Request().Context(), wait, may)
	if err != nil {
		return acquisition.errorFor(err)
	}
	denied := may() // a right may end during the wait
	err = cmp.Or(denied, c.Request().Context().Err())
	if err == nil {
		given := make([]wire.Lease, len(all))
		for i, lease := range all {
			h := l.handleOf(lease.Ref(), access.Of(c.Request().Context()).Name(), acquisition.sinceOf(i))
			given[i] = wire.Lease{
				Resource: h.Resource, Token: h.Token, Grant: lease.Grant.Presented(), Handle: l.handles.make(h),
				TTLMS: requests[i].TTL.Milliseconds(), Timing: timingOf(began, lease.Deadline),
			}
		}
		err = respond(c, http.StatusCreated, answer(given))
	}
	if err != nil && denied == nil && acquisition.seals != nil {
		return err // a repeat with the key may find the leases; else they expire
	}
	if err != nil {
		// The client disconnected while it waited, or gets no lease: nobody else would release these.
		for _, lease := range all {
			l.giveBack(c.Request().Context(), lease.Ref())
		}
		return err
	}
	l.journal.grants(c.Request(), all)
	return nil
}

// acquireAll acquires several leases, all or none.
func (l *leaseCalls) acquireAll(c echo.Context) error {
	began := time.Now()
	var body wire.AcquireAllRequest
	if err := decode(c, &body); err != nil {
		return err
	}
	requests, wait, err := l.requestsOf(body)
	if err != nil {
		return err
	}
	return l.grant(c, began, requests, wait, func(all []wire.Lease) any { return wire.Leases{Leases: all} })
}

func (l *leaseCalls) requestsOf(body wire.AcquireAllRequest) (all []leasing.Request, wait time.Duration, err error) {
	names := slices.Sorted(slices.Values(body.Resources))
	switch n := len(names); {
	case n == 0:
		return nil, 0, &fence.InvalidError{Field: "resources", Reason: "are empty"}
	case n > maxResources:
		return nil, 0, &fence.InvalidError{Field: "resources", Reason: fmt.Sprintf("are %d; at most %d are allowed", n, maxResources)}
	case len(slices.Compact(names)) < n:
		return nil, 0, &fence.InvalidError{Field: "resources", Reason: "name one resource twice"}
	}
	all = make([]leasing.Request, len(body.Resources))
	for i, resource := range body.Resources {
		if all[i], wait, err = l.requestOf(resource, body.Holder, body.TTL, body.Wait); err != nil {
			return nil, 0, err
		}
	}
	return all, wait, nil
}

func (l *leaseCalls) requestOf(resource, holder string, ttlText, waitText *string) (req leasing.Request, wait time.Duration, err error) {
	req = leasing.Request{Resource: resource, Holder: holder}
	if err := fence.ValidateResource(resource); err != nil {
		return req, 0, err
	}
	if err := leasing.ValidateHolder(holder); err != nil {
		return req, 0, err
	}
	if req.TTL, err = l.ttl(ttlText); err != nil {
		return req, 0, err
	}
	wait, err = duration("wait", waitText, 0)
	switch {
	case err != nil:
		return req, 0, err
	case wait < 0:
		return req, 0, &fence.InvalidError{Field: "wait", Reason: "is negative"}
	case wait > l.cfg.MaxWait:
		return req, 0, &fence.InvalidError{Field: "wait", Reason: fmt.Sprintf("is over the maximum of %v", l.cfg.MaxWait)}
	}
	return req, wait, nil
}

func (l *leaseCalls) giveBack(ctx context.Context, ref leasing.Ref) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := l.cfg.Leases.Release(ctx, ref); err != nil && !errors.Is(err, leasing.ErrLost) {
		l.log.WarnContext(ctx, "failed to release a lease after its client disconnected; it expires at its TTL",
			"resource", ref.Resource, "token", ref.Token, "error", err)
	}
}

// acquisition is one client's acquisition of leases.
type acquisition struct {
	calls    *leaseCalls
	requests []leasing.Request
	seals    [][]fence.Seal // of each request; a new lease gets the first; nil: there is no Idempotency-Key
	since    []time.Time    // when the found leases were acquired; nil: the leases are new
}

// newAcquisition sets the seals of the requests, if there is a key.
func (l *leaseCalls) newAcquisition(c echo.Context, requests []leasing.Request) (*acquisition, error) {
	a := &acquisition{calls: l, requests: requests}
	key, err := idempotencyKey(c.Request())
	if err != nil || key == "" {
		return a, err
	}
	who := access.Of(c.Request().Context()).Name()
	what := fingerprint(requests)
	if !l.keys.same(sha256.Sum256(framed(who, key)), what) {
		return nil, errOtherRequest
	}
	for i, r := range requests {
		seals := l.handles.seals(framed(who, key, r.Resource, string(what[:])))
		requests[i].SealHash, requests[i].Repeatable, a.seals = seals[0].Hash(), true, append(a.seals, seals)
	}
	return a, nil
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
		if !errors.Is(err, context.Canceled) || ctx.Err() != nil || a.calls.stopping.Err() != nil {
			return nil, err
		}
		wait = max(0, time.Until(until))
	}
}

// awaitUnless is one wait, which also ends when rights does.
func (a *acquisition) awaitUnless(ctx, rights context.Context, wait time.Duration) ([]leasing.Lease, error) {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.calls.stopping, cancel)()
	defer context.AfterFunc(rights, cancel)()
	all, err := a.acquire(waiting, wait)
	if err != nil && ctx.Err() == nil && a.calls.stopping.Err() != nil && errors.Is(err, context.Canceled) {
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
	// An earlier request that waits at another gateway may have acquired the leases during the wait.
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
	all, err := a.calls.cfg.Leases.Acquire(within, wait > 0, a.requests...)
	return all, leaseError(ctx, err)
}

// errorFor returns the error of an acquisition for its client. A repeat with the key finds what may have been acquired.
func (a *acquisition) errorFor(err error) error {
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

// look returns the leases if the key has all of them; else nil. An error says that this is unknown.
func (a *acquisition) look(ctx context.Context) ([]leasing.Lease, error) {
	var all []leasing.Lease
	var since []time.Time
	for i, r := range a.requests {
		lease, at, err := a.leaseUnder(ctx, r, a.seals[i])
		if errors.Is(err, errNotTheKeys) {
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		all, since = append(all, lease), append(since, at)
	}
	a.since = since
	return all, nil
}

// errNotTheKeys reports that a resource is not held under a key.
var errNotTheKeys = errors.New("the key does not hold the resource")

// leaseUnder returns the lease of a resource whose current grant has one of the seals, and when it was acquired. It
// extends the lease, because its holder receives it only now.
func (a *acquisition) leaseUnder(ctx context.Context, r leasing.Request, seals []fence.Seal) (lease leasing.Lease, since time.Time, err error) {
	record, err := recordOf(ctx, a.calls.cfg.Fences, r.Resource)
	switch {
	case errors.Is(err, ErrNotFound):
		return lease, since, errNotTheKeys
	case err != nil:
		return lease, since, err
	case !record.Sealed || record.EndedAt != nil || r.Holder != "" && record.Holder != r.Holder:
		return lease, since, errNotTheKeys
	}
	seal, err := a.sealOf(ctx, record, seals)
	if err != nil {
		return lease, since, err
	}
	state, err := leasing.One(a.calls.cfg.Leases.Inspect(ctx, r.Resource))
	switch {
	case err != nil:
		return lease, since, leaseError(ctx, err)
	case !state.Locked || state.Owner == "" || state.Token != record.Token:
		return lease, since, errNotTheKeys
	}
	ref := leasing.Ref{Resource: r.Resource, Owner: state.Owner, Token: record.Token}
	left, err := a.calls.handleOf(ref, "", record.ArmedAt).left()
	if err != nil {
		return lease, since, errNotTheKeys // it may not be extended any more
	}
	lease.Deadline, err = a.calls.extend(ctx, ref, min(max(r.TTL, state.TTL), cmp.Or(a.calls.cfg.MaxTTL, left)), left)
	switch {
	case errors.Is(err, leasing.ErrLost):
		return lease, since, errNotTheKeys
	case err != nil:
		return lease, since, leaseError(ctx, err)
	}
	lease.Grant = fence.Grant{Resource: r.Resource, Token: record.Token, Seal: seal}
	lease.Owner = state.Owner
	return lease, record.ArmedAt, nil
}

// sealOf returns the seal of the recorded grant among the given ones, or errNotTheKeys.
func (a *acquisition) sealOf(ctx context.Context, record fence.Record, seals []fence.Seal) (fence.Seal, error) {
	for _, seal := range seals {
		if ours, err := a.calls.cfg.Fences.Holds(ctx, record, seal.Hash()); ours || err != nil {
			return seal, err
		}
	}
	return fence.Seal{}, errNotTheKeys
}
