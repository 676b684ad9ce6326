package api

import (
	"cmp"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/activity"
)

// visible is a page of the fences that who asks may inspect. It asks for these alone: a page
// that left others out would tell how many there are, and its end one of their names.
func (s *Server) visible(c echo.Context, prefix, after string, limit int) (page []fence.Record, err error) {
	ctx := c.Request().Context()
	p := access.Of(ctx)
	if !p.MaySome(access.Inspect) {
		return nil, p.Denied(access.Inspect, "")
	}
	for _, pattern := range p.Patterns(access.Inspect) {
		var found []fence.Record
		name, isPrefix := strings.CutSuffix(pattern, "*")
		switch {
		case strings.HasPrefix(name, prefix) && !isPrefix: // the name itself is the first below it
			if name <= after {
				continue
			}
			found, err = s.cfg.Fences.List(ctx, name, "", 1)
			found = slices.DeleteFunc(found, func(r fence.Record) bool { return r.Resource != name })
		case isPrefix && (strings.HasPrefix(name, prefix) || strings.HasPrefix(prefix, name)):
			longer := name
			if len(prefix) > len(name) {
				longer = prefix
			}
			found, err = s.cfg.Fences.List(ctx, longer, after, limit)
		}
		if err != nil {
			return nil, err
		}
		page = append(page, found...)
	}
	slices.SortFunc(page, func(a, b fence.Record) int { return cmp.Compare(a.Resource, b.Resource) })
	return page[:min(limit, len(page))], nil
}

// toldTo are those of the events that a principal may see. What is about no resource is about
// the gateway.
func toldTo(p *access.Principal, events []activity.Event) []activity.Event {
	return slices.DeleteFunc(slices.Clone(events), func(e activity.Event) bool { return !p.May(access.Inspect, e.Resource) })
}
