package api

import (
	"context"
	"errors"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/wire"
)

// status answers with the gateway's status, also while PostgreSQL or the lock is away.
func (s *Server) status(c echo.Context) error {
	answer, err := s.currentStatus(c.Request().Context())
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, answer)
}

// currentStatus returns what the context's principal may know of the gateway's status. Only principals that may inspect
// everything get the gateway's totals and the nodes' names.
func (s *Server) currentStatus(ctx context.Context) (wire.Status, error) {
	p := access.Of(ctx)
	if !p.MaySome(access.Inspect) {
		return wire.Status{}, p.Denied(access.Inspect, "")
	}
	checks := s.checksFor(wire.SurfaceLease)
	found, err := s.looks[wire.SurfaceLease].take(ctx, checks)
	if err != nil {
		return wire.Status{}, err
	}
	var answer wire.Status
	if s.cfg.Status != nil {
		answer = s.cfg.Status(ctx)
	}
	answer.Ready = !s.leaving.Load()
	answer.Postgres.State, answer.Lock.State = wire.PartOK, wire.PartOK
	for i, err := range found {
		state, detail := &answer.Postgres.State, &answer.Postgres.Detail
		if checks[i].Part != wire.PartPostgres || checks[i].Leases {
			state, detail = &answer.Lock.State, &answer.Lock.Detail
		}
		less, serves := errors.AsType[*DegradedError](err)
		switch {
		case serves && *detail == "":
			*detail = less.What
		case err != nil && !serves && *state == wire.PartOK:
			failed := &leasing.UnavailableError{Part: checks[i].Part, Cause: err}
			*state, *detail, answer.Ready = wire.PartAway, unavailableDetail(failed), false
		}
	}
	if answer.Lock.Nodes == nil {
		answer.Lock.Nodes = []wire.NodeStatus{}
	}
	if !p.May(access.Inspect, "") || answer.Keys == nil {
		answer.Keys = []wire.KeyStatus{}
	}
	if !p.May(access.Inspect, "") {
		answer.HeldLeases, answer.Waiters, answer.Objects = nil, nil, nil
		answer.Lock.Nodes = unnamed(answer.Lock.Nodes)
	}
	if !p.May(access.Sessions, "") {
		answer.Sessions = nil
	}
	answer.StartedAt = answer.StartedAt.UTC()
	return answer, nil
}
