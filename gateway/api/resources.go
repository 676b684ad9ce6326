package api

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/wire"
)

// resourceCalls are the calls about resources: what the fence and the lock know of them, and revocations.
type resourceCalls struct {
	leases  Leases
	fences  Fences
	journal *journal
	log     *slog.Logger
}

// revokeTimeout bounds a revocation; arming has its own limit for draining.
const revokeTimeout = 15 * time.Second

func (r *resourceCalls) inspect(c echo.Context) error {
	resource, err := resourceIn(c, "")
	if err != nil {
		return err
	}
	if err := checkRight(c, access.Inspect, resource); err != nil {
		return err
	}
	answer, err := r.stateOf(c.Request().Context(), resource)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, answer)
}

// stateOf returns what is known of a resource.
func (r *resourceCalls) stateOf(ctx context.Context, resource string) (wire.Resource, error) {
	found, err := recordOf(ctx, r.fences, resource)
	if err != nil {
		return wire.Resource{}, err
	}
	answer := wire.Resource{Record: found.UTC()}
	state, err := leasing.One(r.leases.Inspect(ctx, resource))
	answer.Lock = lockOf(state, access.Of(ctx).May(access.Inspect, ""))
	if err != nil {
		r.log.WarnContext(ctx, "failed to learn whether a resource is locked", "resource", resource, "error", leaseError(ctx, err))
	} else {
		answer.Locked = &state.Locked
	}
	return answer, nil
}

// recordOf returns the record of a resource's fence.
func recordOf(ctx context.Context, fences Fences, resource string) (fence.Record, error) {
	ctx, cancel := queryContext(ctx)
	defer cancel()
	found, err := fences.Inspect(ctx, resource)
	return found, timeoutOf(ctx, wire.PartPostgres, err)
}

// resourceIn returns the resource's name from the path, before the suffix.
func resourceIn(c echo.Context, suffix string) (string, error) {
	// The escaped path distinguishes an encoded slash from a plain one; a resource's name may contain both.
	escaped := strings.TrimPrefix(c.Request().URL.EscapedPath(), resourcesPath)
	escaped, ok := strings.CutSuffix(escaped, suffix)
	if !ok {
		return "", echo.ErrNotFound
	}
	return fence.UnescapeResource(escaped)
}

// revoke takes the resource from its holder, whose later writes are refused.
func (r *resourceCalls) revoke(c echo.Context) error {
	resource, err := resourceIn(c, "/revoke")
	if err != nil {
		return err
	}
	var body wire.RevokeRequest
	if err := decode(c, &body); err != nil {
		return err
	}
	if err := leasing.ValidateHolder(body.Holder); err != nil {
		return err
	}
	if err := checkRight(c, access.Revoke, resource); err != nil {
		return err
	}
	token, err := r.takeAway(c.Request(), resource, body.Holder, 0)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, wire.Revoked{Resource: resource, Token: token})
}

// takeAway revokes a resource, even if the client disconnects. seen is as in [Fences].
func (r *resourceCalls) takeAway(req *http.Request, resource, by string, seen fence.Token) (fence.Token, error) {
	ctx, cancel := actContext(req.Context(), revokeTimeout)
	defer cancel()
	token, err := r.fences.Revoke(ctx, resource, fence.RevokedBy+cmp.Or(by, access.Of(req.Context()).Name(), "somebody over HTTP"), seen)
	undrained, raised := errors.AsType[*fence.UndrainedError](err)
	switch {
	case raised && undrained.Token > 0:
		token = undrained.Token // the holder is out, although a write of it may still land
	case err != nil:
		return 0, timeoutOf(ctx, wire.PartPostgres, err)
	}
	r.journal.audit(req, "a resource was revoked", "resource", resource, "token", token, "by", by)
	r.journal.event(req, activity.Event{Kind: wire.EventRevoked, Surface: wire.SurfaceAPI, Resource: resource, Recorded: token, Holder: by})
	return token, err
}
