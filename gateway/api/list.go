package api

import (
	"context"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/wire"
)

// list pages through the resources that the principal may inspect, ordered by the bytes of their names.
func (s *Server) list(c echo.Context) error {
	query, err := queryOf(c, "prefix", "after", "limit", "held")
	if err != nil {
		return err
	}
	q := listing{prefix: query.Get("prefix"), after: query.Get("after"), held: query.Get("held") == "true"}
	for field, name := range map[string]string{"prefix": q.prefix, "after": q.after} {
		if err := fence.ValidateResource(name); name != "" && err != nil {
			return &fence.InvalidError{Field: field, Reason: strings.TrimPrefix(err.Error(), "resource ")}
		}
	}
	if query.Has("held") && !q.held && query.Get("held") != "false" {
		return &fence.InvalidError{Field: "held", Reason: "is neither true nor false"}
	}
	if q.limit, err = limitIn(query); err != nil {
		return err
	}
	answer, err := s.page(c.Request().Context(), q)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, answer)
}

// listing is a request for a page.
type listing struct {
	prefix, after string
	held          bool // only held resources
	limit         int
}

// page returns one page of what the context's principal may inspect. With q.held it scans the largest page, so the
// answer may have few resources and still a next page.
func (s *Server) page(ctx context.Context, q listing) (wire.Resources, error) {
	answer := wire.Resources{Resources: []wire.Listed{}}
	looked := q.limit
	if q.held {
		looked = maxPage
	}
	found, err := s.visible(ctx, q.prefix, q.after, looked)
	if err != nil {
		return answer, err
	}
	all, err := s.survey(ctx, found, q.held)
	if err != nil {
		return answer, err
	}
	last := ""
	for _, one := range all {
		if q.held && one.State != wire.StateLive {
			last = one.Resource
			continue
		}
		if len(answer.Resources) == q.limit {
			answer.Next = &last
			return answer, nil
		}
		answer.Resources, last = append(answer.Resources, one), one.Resource
	}
	if len(found) == looked {
		answer.Next = &last
	}
	return answer, nil
}

// survey reports for each fence whether its resource is held. If the lock does not answer, survey fails if need is set.
func (s *Server) survey(ctx context.Context, found []fence.Record, need bool) ([]wire.Listed, error) {
	if len(found) == 0 {
		return nil, nil
	}
	names, all := make([]string, len(found)), make([]wire.Listed, len(found))
	for i, record := range found {
		names[i] = record.Resource
		all[i] = wire.Listed{Record: record.UTC(), State: wire.StateOf(record, nil)}
	}
	held, err := s.cfg.Leases.Inspect(ctx, names...)
	switch {
	case ctx.Err() != nil:
		return nil, lockUnanswered(ctx, err)
	case err != nil && need:
		return nil, leaseError(ctx, err)
	case err != nil:
		s.log.WarnContext(ctx, "failed to learn whether resources are held", "error", leaseError(ctx, err))
	}
	for i, one := range held {
		if err == nil || one.Locked {
			all[i].State, all[i].LeftMS = wire.StateOf(found[i], &one.Locked), ttlMS(one.Locked, one.TTL)
		}
		all[i].Waiters = one.Waiters
	}
	return all, nil
}
