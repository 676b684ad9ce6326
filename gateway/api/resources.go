package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/wire"
)

func (s *Server) inspect(c echo.Context) error {
	resource, err := resourceIn(c, "")
	if err != nil {
		return err
	}
	if err := check(c, access.Inspect, resource); err != nil {
		return err
	}
	answer, err := s.inspected(c.Request().Context(), resource)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, answer)
}

// inspected returns what is known of a resource.
func (s *Server) inspected(ctx context.Context, resource string) (wire.Resource, error) {
	found, err := s.recorded(ctx, resource)
	if err != nil {
		return wire.Resource{}, err
	}
	answer := wire.Resource{Record: found.UTC()}
	state, err := leasing.One(s.cfg.Leases.Inspect(ctx, resource))
	answer.Lock = lockOf(state, access.Of(ctx).May(access.Inspect, ""))
	if err != nil {
		s.log.WarnContext(ctx, "failed to learn whether a resource is locked", "resource", resource, "error", leaseError(ctx, err))
	} else {
		answer.Locked = &state.Locked
	}
	return answer, nil
}

// recorded returns the record of a resource's fence.
func (s *Server) recorded(ctx context.Context, resource string) (fence.Record, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	found, err := s.cfg.Fences.Inspect(ctx, resource)
	return found, unanswered(ctx, wire.PartPostgres, err)
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
func (s *Server) revoke(c echo.Context) error {
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
	if err := check(c, access.Revoke, resource); err != nil {
		return err
	}
	token, err := s.takeAway(c.Request(), resource, body.Holder, 0)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, wire.Revoked{Resource: resource, Token: token})
}

// takeAway revokes a resource, even if the client disconnects. seen is as in [Fences].
func (s *Server) takeAway(r *http.Request, resource, by string, seen fence.Token) (fence.Token, error) {
	ctx, cancel := boundedAct(r.Context(), revokeTimeout)
	defer cancel()
	token, err := s.cfg.Fences.Revoke(ctx, resource, fence.RevokedBy+cmp.Or(by, access.Of(r.Context()).Name(), "somebody over HTTP"), seen)
	undrained, raised := errors.AsType[*fence.UndrainedError](err)
	switch {
	case raised && undrained.Token > 0:
		token = undrained.Token // the holder is out, although a write of it may still land
	case err != nil:
		return 0, unanswered(ctx, wire.PartPostgres, err)
	}
	s.auditOf(r, "a resource was revoked", "resource", resource, "token", token, "by", by)
	s.tellOf(r, activity.Event{Kind: wire.EventRevoked, Surface: wire.SurfaceAPI, Resource: resource, Recorded: token, Holder: by})
	return token, err
}

const (
	revokeTimeout = 15 * time.Second // arming has its own limit for draining

	defaultPage = 100
	maxPage     = 1000
)

func limitIn(query url.Values) (int, error) {
	if !query.Has("limit") {
		return defaultPage, nil
	}
	limit, err := strconv.Atoi(query.Get("limit"))
	if err != nil || limit < 1 || limit > maxPage {
		return 0, &fence.InvalidError{Field: "limit", Reason: fmt.Sprintf("is not a number from 1 to %d", maxPage)}
	}
	return limit, nil
}

// endpoints returns the addresses of the other ports, under the host name by which the client reached this one.
func (s *Server) endpoints(c echo.Context) error {
	return respond(c, http.StatusOK, s.endpointsFor(c))
}

func (s *Server) endpointsFor(c echo.Context) wire.Endpoints {
	if s.cfg.Endpoints == nil {
		return wire.Endpoints{}
	}
	return s.cfg.Endpoints(hostname(c.Request().Host))
}
