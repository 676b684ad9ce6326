package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/wire"
)

const releaseTimeout = 5 * time.Second

// timingOf computes a lease's timing from the request's arrival and the lease's end. It drops fractions of milliseconds
// on the safe side. Of a lease that is over, the elapsed time ends with it.
func timingOf(began time.Time, end clock.Instant) wire.Timing {
	elapsed, left := time.Since(began), end.Left()
	if left < 0 {
		elapsed, left = elapsed+left, 0
	}
	return wire.Timing{ElapsedMS: max(0, elapsed.Milliseconds()), ValidMS: left.Milliseconds()}
}

func (s *Server) acquire(c echo.Context) error {
	began := time.Now()
	var body wire.AcquireRequest
	if err := decode(c, &body); err != nil {
		return err
	}
	request, wait, err := s.requestOf(body.Resource, body.Holder, body.TTL, body.Wait)
	if err != nil {
		return err
	}
	return s.grant(c, began, []leasing.Request{request}, wait, func(all []wire.Lease) any { return all[0] })
}

// grant acquires leases and answers with them.
func (s *Server) grant(c echo.Context, began time.Time, requests []leasing.Request, wait time.Duration, answer func(all []wire.Lease) any) error {
	may := func() error {
		for _, r := range requests {
			if err := check(c, access.Acquire, r.Resource); err != nil {
				return err
			}
		}
		return nil
	}
	if err := may(); err != nil {
		return err
	}
	acquisition, err := s.acquisitionOf(c, requests)
	if err != nil {
		return err
	}
	all, err := acquisition.await(c.Request().Context(), wait, may)
	if err != nil {
		return acquisition.failed(err)
	}
	denied := may() // a right may end during the wait
	err = cmp.Or(denied, c.Request().Context().Err())
	if err == nil {
		told := make([]wire.Lease, len(all))
		for i, lease := range all {
			told[i] = s.told(c, lease, requests[i].TTL, began, acquisition.sinceOf(i))
		}
		err = respond(c, http.StatusCreated, answer(told))
	}
	if err != nil && denied == nil && acquisition.seals != nil {
		return err // a repeat with the key may find the leases; else they expire
	}
	if err != nil {
		// The client disconnected while it waited, or gets no lease: nobody else would release these.
		for _, lease := range all {
			s.giveBack(c.Request().Context(), lease.Ref())
		}
		return err
	}
	s.auditAcquired(c, all)
	for _, lease := range all {
		s.tellLease(c, wire.EventAcquired, lease.Ref())
	}
	return nil
}

// handleOf returns the handle of a lease that a principal acquired at since.
func (s *Server) handleOf(ref leasing.Ref, principal string, since time.Time) handle {
	h := handle{Ref: ref, Principal: principal, Since: since}
	if s.cfg.MaxLease != Unlimited {
		h.Until = since.Add(s.cfg.MaxLease)
	}
	return h
}

// told returns a lease as its holder gets it.
func (s *Server) told(c echo.Context, lease leasing.Lease, ttl time.Duration, began, since time.Time) wire.Lease {
	h := s.handleOf(lease.Ref(), access.Of(c.Request().Context()).Name(), since)
	return wire.Lease{
		Resource: lease.Grant.Resource, Token: lease.Grant.Token, Grant: lease.Grant.Presented(), Handle: s.handles.make(h),
		TTLMS: ttl.Milliseconds(), Timing: timingOf(began, lease.Deadline),
	}
}

func (s *Server) requestOf(resource, holder string, ttlText, waitText *string) (req leasing.Request, wait time.Duration, err error) {
	req = leasing.Request{Resource: resource, Holder: holder}
	if err := fence.ValidateResource(resource); err != nil {
		return req, 0, err
	}
	if err := leasing.ValidateHolder(holder); err != nil {
		return req, 0, err
	}
	if req.TTL, err = s.ttl(ttlText); err != nil {
		return req, 0, err
	}
	wait, err = duration("wait", waitText, 0)
	switch {
	case err != nil:
		return req, 0, err
	case wait < 0:
		return req, 0, &fence.InvalidError{Field: "wait", Reason: "is negative"}
	case wait > s.cfg.MaxWait:
		return req, 0, &fence.InvalidError{Field: "wait", Reason: fmt.Sprintf("is over the maximum of %v", s.cfg.MaxWait)}
	}
	return req, wait, nil
}

func (s *Server) giveBack(ctx context.Context, ref leasing.Ref) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := s.cfg.Leases.Release(ctx, ref); err != nil && !errors.Is(err, leasing.ErrLost) {
		s.log.WarnContext(ctx, "failed to release a lease after its client disconnected; it expires at its TTL",
			"resource", ref.Resource, "token", ref.Token, "error", err)
	}
}

// leased parses the handle. The error is a [*fence.InvalidError].
func (s *Server) leased(text string) (handle, error) {
	if text == "" {
		return handle{}, &fence.InvalidError{Field: "handle", Reason: "is missing"}
	}
	return s.handles.open(text)
}

// usable is leased; it returns an [*access.DeniedError] if the caller may not renew and release the lease.
func (s *Server) usable(c echo.Context, text string) (handle, error) {
	h, err := s.leased(text)
	if err == nil {
		err = mayUse(c, h)
	}
	return h, err
}

// ended reports how long a lease was held. The time is from its handle, because another replica may have acquired it.
func (s *Server) ended(h handle, lost bool) {
	if s.cfg.Ended != nil {
		s.cfg.Ended(max(0, time.Since(h.Since)), lost)
	}
}

func (s *Server) renew(c echo.Context) error {
	began := time.Now()
	var body wire.RenewRequest
	if err := decode(c, &body); err != nil {
		return err
	}
	ttl, err := s.ttl(body.TTL)
	if err != nil {
		return err
	}
	h, err := s.usable(c, body.Handle)
	if err != nil {
		return err
	}
	left, err := h.left()
	if err != nil {
		return err
	}
	ctx := c.Request().Context()
	deadline, err := s.extend(ctx, h.Ref, ttl, left)
	if errors.Is(err, leasing.ErrLost) {
		s.ended(h, true)
		s.tellLease(c, wire.EventLost, h.Ref)
		err = s.lossOf(ctx, h, err)
	}
	if err != nil {
		return halfDone(leaseError(ctx, err), renewHint)
	}
	s.auditManaged(c, "a principal renewed another's lease", h)
	timing := timingOf(began, deadline)
	timing.Final = left <= ttl
	return respond(c, http.StatusOK, wire.Renewed{Resource: h.Resource, Token: h.Token, Timing: timing})
}

// extend extends a lease that may be held for left more. The source has no extension shorter than [leasing.MinTTL], so
// its last one may exceed left. The deadline does not.
func (s *Server) extend(ctx context.Context, ref leasing.Ref, ttl, left time.Duration) (clock.Instant, error) {
	if left < ttl {
		ttl = max(left, min(ttl, leasing.MinTTL))
	}
	deadline, err := s.cfg.Leases.Extend(ctx, ref, ttl)
	if err == nil && left < deadline.Left() {
		deadline = deadline.Now().Add(left)
	}
	return deadline, err
}

func (s *Server) release(c echo.Context) error {
	var body wire.HandleRequest
	if err := decode(c, &body); err != nil {
		return err
	}
	h, err := s.usable(c, body.Handle)
	if err != nil {
		return err
	}
	ctx, cancel := boundedAct(c.Request().Context(), releaseTimeout)
	defer cancel()
	switch err := s.cfg.Leases.Release(ctx, h.Ref); {
	case err == nil:
		s.ended(h, false)
		s.auditManaged(c, "a principal released another's lease", h)
		s.tellLease(c, wire.EventReleased, h.Ref)
	case errors.Is(err, leasing.ErrLost): // it may be the repeat of a release whose answer was lost
	case ctx.Err() != nil:
		return halfDone(lockUnanswered(ctx, err), releaseHint)
	default:
		return halfDone(leaseError(ctx, err), releaseHint)
	}
	return c.NoContent(http.StatusNoContent)
}

// respond writes v as JSON. Most answers hold a secret, so caches must not store them. The status is sent only once all
// of v is encoded.
func respond(c echo.Context, status int, v any) error {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	header := c.Response().Header()
	header.Set(echo.HeaderContentType, echo.MIMEApplicationJSON)
	header.Set(echo.HeaderCacheControl, "no-store")
	extendWrite(c)
	c.Response().WriteHeader(status)
	_, err := c.Response().Write(body.Bytes())
	return err
}
