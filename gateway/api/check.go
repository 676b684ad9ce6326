package api

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/wire"
)

// checking is the right that a check of a grant needs. A check with a seal changes nothing. A bare token raises the
// fence if it is the highest, as a statement under it does.
func checking(grant fence.Grant) access.Verb {
	if grant.Seal.IsZero() {
		return access.SQL
	}
	return access.Acquire
}

// checkGrant reports whether the fence accepts a grant now, for side effects outside a transaction. It asks the fence
// as a writer does, in a transaction that writes nothing. The answer also says whether the resource is locked: the
// fence accepts the grant of an expired lease until the next holder is armed.
func (s *Server) checkGrant(c echo.Context) error {
	if s.cfg.SQL == nil {
		return fmt.Errorf("%w: this gateway has no login for SQL", ErrNotImplemented)
	}
	grant, err := fence.FromHeader(c.Request().Header)
	if err != nil {
		return err
	}
	if err := check(c, checking(grant), grant.Resource); err != nil {
		return err
	}
	ctx := c.Request().Context()
	var (
		asked sync.WaitGroup
		state held
	)
	if !grant.Seal.IsZero() {
		asked.Go(func() { state.Inspection, state.err = leasing.One(s.cfg.Leases.Inspect(ctx, grant.Resource)) })
	}
	_, err = s.run(ctx, grant, nil)
	asked.Wait()
	if err != nil {
		if e, ok := activity.Refused(err, activity.Event{Surface: wire.SurfaceCheck}); ok {
			s.tell(c, e)
		}
		return err
	}
	answer := wire.Checked{Resource: grant.Resource, Token: grant.Token}
	switch {
	case grant.Seal.IsZero(): // the token of a lock that this gateway does not know
	case state.err != nil:
		s.log.WarnContext(ctx, "failed to learn whether a resource is locked", "resource", grant.Resource, "error", leaseError(ctx, state.err))
	default:
		answer.Locked = &state.Locked
	}
	return respond(c, http.StatusOK, answer)
}
