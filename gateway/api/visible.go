package api

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/wire"
)

// visible returns a page of the fences that the caller may inspect. It queries only those: filtering a page would
// reveal how many others there are, and its end one of their names.
func (s *Server) visible(ctx context.Context, prefix, after string, limit int) (page []fence.Record, err error) {
	p := access.Of(ctx)
	if !p.MaySome(access.Inspect) {
		return nil, p.Denied(access.Inspect, "")
	}
	for _, pattern := range p.Patterns(access.Inspect) {
		var found []fence.Record
		name, isPrefix := strings.CutSuffix(pattern, "*")
		switch {
		case strings.HasPrefix(name, prefix) && !isPrefix: // the first name that begins with name is name itself
			if name <= after {
				continue
			}
			found, err = s.fencesBelow(ctx, name, "", 1)
			found = slices.DeleteFunc(found, func(r fence.Record) bool { return r.Resource != name })
		case isPrefix && (strings.HasPrefix(name, prefix) || strings.HasPrefix(prefix, name)):
			longer := name
			if len(prefix) > len(name) {
				longer = prefix
			}
			found, err = s.fencesBelow(ctx, longer, after, limit)
		}
		if err != nil {
			return nil, err
		}
		page = append(page, found...)
	}
	slices.SortFunc(page, func(a, b fence.Record) int { return cmp.Compare(a.Resource, b.Resource) })
	return page[:min(limit, len(page))], nil
}

// fencesBelow returns the fences that begin with prefix and come after `after`.
func (s *Server) fencesBelow(ctx context.Context, prefix, after string, limit int) ([]fence.Record, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	found, err := s.cfg.Fences.List(ctx, prefix, after, limit)
	return found, unanswered(ctx, wire.PartPostgres, err)
}

// toldTo returns the events that a principal may see, with the fields that it may see: the events about a resource that
// it may inspect. A write under one resource's grant to a row that needs another is visible to principals that may
// inspect either, without the other. Events about no resource, and the number of missed events, are visible to
// principals that may inspect everything.
func toldTo(p *access.Principal, events []activity.Event) (told []activity.Event) {
	if p.May(access.Inspect, "") {
		return events
	}
	for _, e := range events {
		ofGrant, ofNeed := e.Resource != "" && p.May(access.Inspect, e.Resource), e.Needed != "" && p.May(access.Inspect, e.Needed)
		switch {
		case e.Kind == wire.EventMissed:
			e.Missed = 0
		case !ofGrant && !ofNeed:
			continue
		}
		if !ofGrant {
			e.Resource, e.Presented, e.Recorded = "", 0, 0
		}
		if !ofNeed && e.Needed != "" { // the table belongs to the needed resource
			e.Needed, e.Table = "", ""
		}
		told = append(told, e)
	}
	return told
}
