package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/wire"
)

// leaseCalls are the calls that acquire, renew and release leases.
type leaseCalls struct {
	cfg      Config // of it: Leases, Fences, and the times of leases
	handles  *sealer
	keys     *recentKeys
	journal  *journal
	log      *slog.Logger
	stopping context.Context // ends waits
}

const (
	releaseTimeout = 5 * time.Second
	// lossTimeout bounds the query for the fence of a lease that is over.
	lossTimeout = time.Second

	releaseHint = "The grant may have ended already. Release again; otherwise the lock ends at its TTL."
	renewHint   = "The lease may end at its old deadline. Try again before that."
)

func (l *leaseCalls) renew(c echo.Context) error {
	began := time.Now()
	var body wire.RenewRequest
	if err := decode(c, &body); err != nil {
		return err
	}
	ttl, err := l.ttl(body.TTL)
	if err != nil {
		return err
	}
	h, err := l.usableHandle(c, body.Handle)
	if err != nil {
		return err
	}
	left, err := h.left()
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	deadline, err := l.extend(ctx, h.Ref, ttl, left)
	if errors.Is(err, leasing.ErrLost) {
		l.reportEnd(h, true)
		l.journal.leaseEvent(c.Request(), wire.EventLost, h.Ref)
		err = l.lossOf(ctx, h, err)
	}
	if err != nil {
		return halfDone(leaseError(ctx, err), renewHint)
	}
	l.journal.foreignUse(c.Request(), "a principal renewed another's lease", h)
	timing := timingOf(began, deadline)
	timing.Final = left <= ttl
	return respond(c, http.StatusOK, wire.Renewed{Resource: h.Resource, Token: h.Token, Timing: timing})
}

// extend extends a lease that may be held for left more. The source has no extension shorter than [leasing.MinTTL], so
// its last one may exceed left. The deadline does not.
func (l *leaseCalls) extend(ctx context.Context, ref leasing.Ref, ttl, left time.Duration) (clock.Instant, error) {
	if left < ttl {
		ttl = max(left, min(ttl, leasing.MinTTL))
	}
	deadline, err := l.cfg.Leases.Extend(ctx, ref, ttl)
	if err == nil && left < deadline.Left() {
		deadline = deadline.Now().Add(left)
	}
	return deadline, err
}

func (l *leaseCalls) release(c echo.Context) error {
	var body wire.HandleRequest
	if err := decode(c, &body); err != nil {
		return err
	}
	h, err := l.usableHandle(c, body.Handle)
	if err != nil {
		return err
	}
	ctx, cancel := actContext(c.Request().Context(), releaseTimeout)
	defer cancel()
	switch err := l.cfg.Leases.Release(ctx, h.Ref); {
	case err == nil:
		l.reportEnd(h, false)
		l.journal.foreignUse(c.Request(), "a principal released another's lease", h)
		l.journal.leaseEvent(c.Request(), wire.EventReleased, h.Ref)
	case errors.Is(err, leasing.ErrLost): // it may be the repeat of a release whose answer was lost
	case ctx.Err() != nil:
		return halfDone(lockTimeout(ctx, err), releaseHint)
	default:
		return halfDone(leaseError(ctx, err), releaseHint)
	}
	return c.NoContent(http.StatusNoContent)
}

// usableHandle parses a handle. The error is an [*access.DeniedError] if the caller may not renew and release the
// lease.
func (l *leaseCalls) usableHandle(c echo.Context, text string) (handle, error) {
	h, err := l.handles.open(text)
	if err == nil {
		err = mayUse(c, h)
	}
	return h, err
}

// handleOf returns the handle of a lease that a principal acquired at since.
func (l *leaseCalls) handleOf(ref leasing.Ref, principal string, since time.Time) handle {
	h := handle{Ref: ref, Principal: principal, Since: since}
	if l.cfg.MaxLease != Unlimited {
		h.Until = since.Add(l.cfg.MaxLease)
	}
	return h
}

// ttl parses a lease's time to live.
func (l *leaseCalls) ttl(text *string) (time.Duration, error) {
	ttl, err := duration("ttl", text, l.cfg.DefaultTTL)
	switch {
	case err != nil:
		return 0, err
	case ttl <= 0:
		return 0, &fence.InvalidError{Field: "ttl", Reason: "is not positive"}
	case l.cfg.MaxTTL > 0 && ttl > l.cfg.MaxTTL:
		return 0, &fence.InvalidError{Field: "ttl", Reason: fmt.Sprintf("is over the maximum of %v", l.cfg.MaxTTL)}
	}
	return ttl, nil
}

// timingOf computes a lease's timing from the request's arrival and the lease's end. It drops fractions of milliseconds
// on the safe side. Of a lease that is over, the elapsed time ends with it.
func timingOf(began time.Time, end clock.Instant) wire.Timing {
	elapsed, left := time.Since(began), end.Left()
	if left < 0 {
		elapsed, left = elapsed+left, 0
	}
	return wire.Timing{ElapsedMS: max(0, elapsed.Milliseconds()), ValidMS: left.Milliseconds()}
}

// reportEnd reports how long a lease was held. The time is from its handle, because another replica may have acquired
// it.
func (l *leaseCalls) reportEnd(h handle, lost bool) {
	if l.cfg.Ended != nil {
		l.cfg.Ended(max(0, time.Since(h.Since)), lost)
	}
}

// lossError reports that a lease is over, with the reason that the fence records.
type lossError struct {
	why      string
	recorded fence.Token // 0: the fence was not raised
}

func (e *lossError) Error() string { return leasing.ErrLost.Error() + ": " + e.why }
func (e *lossError) Unwrap() error { return leasing.ErrLost }

// lossOf adds the reason to err, which reports that a lease is over, if the fence answers.
func (l *leaseCalls) lossOf(ctx context.Context, h handle, err error) error {
	ctx, cancel := context.WithTimeout(ctx, lossTimeout)
	defer cancel()
	record, unknown := l.cfg.Fences.Inspect(ctx, h.Resource)
	switch {
	case unknown != nil || record.Token < h.Token:
		return err
	case record.Token > h.Token && record.Revoked():
		return &lossError{"its resource was revoked", record.Token}
	case record.Token > h.Token:
		return &lossError{"another has acquired the resource since", record.Token}
	case record.EndedAt != nil:
		return &lossError{why: "it was released, or ran out"}
	}
	return &lossError{why: "it ran out"}
}
