package api

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/wire"
)

// list pages through the resources that the principal may inspect, ordered by the bytes of their names.
func (r *resourceCalls) list(c echo.Context) error {
	query, err := queryOf(c, "prefix", "after", "limit", "held")
	if err != nil {
		return err
	}
	q := listing{prefix: query.Get("prefix"), after: query.Get("after"), onlyHeld: query.Get("held") == "true"}
	for field, name := range map[string]string{"prefix": q.prefix, "after": q.after} {
		if err := fence.ValidateResource(name); name != "" && err != nil {
			return &fence.InvalidError{Field: field, Reason: strings.TrimPrefix(err.Error(), "resource ")}
		}
	}
	if query.Has("held") && !q.onlyHeld && query.Get("held") != "false" {
		return &fence.InvalidError{Field: "held", Reason: "is neither true nor false"}
	}
	if q.limit, err = limitIn(query); err != nil {
		return err
	}
	answer, err := r.page(c.Request().Context(), q)
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, answer)
}

// listing is a request for a page.
type listing struct {
	prefix, after string
	onlyHeld      bool
	limit         int
}

// page returns one page of what the context's principal may inspect. With q.onlyHeld it scans the largest page, so the
// answer may have few resources and still a next page.
func (r *resourceCalls) page(ctx context.Context, q listing) (wire.Resources, error) {
	answer := wire.Resources{Resources: []wire.Listed{}}
	scanned := q.limit
	if q.onlyHeld {
		scanned = maxPage
	}
	found, err := r.listFences(ctx, q.prefix, q.after, scanned)
	if err != nil {
		return answer, err
	}
	all, err := r.survey(ctx, found, q.onlyHeld)
	if err != nil {
		return answer, err
	}
	last := ""
	for _, one := range all {
		if q.onlyHeld && one.State != wire.StateLive {
			last = one.Resource
			continue
		}
		if len(answer.Resources) == q.limit {
			answer.Next = &last
			return answer, nil
		}
		answer.Resources, last = append(answer.Resources, one), one.Resource
	}
	if len(found) == scanned {
		answer.Next = &last
	}
	return answer, nil
}

// survey reports for each fence whether its resource is held. If the lock does not answer, survey fails if need is set.
func (r *resourceCalls) survey(ctx context.Context, found []fence.Record, need bool) ([]wire.Listed, error) {
	if len(found) == 0 {
		return nil, nil
	}
	names, all := make([]string, len(found)), make([]wire.Listed, len(found))
	for i, record := range found {
		names[i] = record.Resource
		all[i] = wire.Listed{Record: record.UTC(), State: wire.StateOf(record, nil)}
	}
	held, err := r.leases.Inspect(ctx, names...)
	switch {
	case ctx.Err() != nil:
		return nil, lockTimeout(ctx, err)
	case err != nil && need:
		return nil, leaseError(ctx, err)
	case err != nil:
		r.log.WarnContext(ctx, "failed to learn whether resources are held", "error", leaseError(ctx, err))
	}
	for i, one := range held {
		if err == nil || one.Locked {
			all[i].State, all[i].LeftMS = wire.StateOf(found[i], &one.Locked), ttlMS(one.Locked, one.TTL)
		}
		all[i].Waiters = one.Waiters
	}
	return all, nil
}

// listFences returns a page of the fences that the caller may inspect. It queries only those: filtering a page would
// reveal how many others there are, and its end one of their names.
func (r *resourceCalls) listFences(ctx context.Context, prefix, after string, limit int) (page []fence.Record, err error) {
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
			found, err = r.fencesBelow(ctx, name, "", 1)
			found = slices.DeleteFunc(found, func(one fence.Record) bool { return one.Resource != name })
		case isPrefix && (strings.HasPrefix(name, prefix) || strings.HasPrefix(prefix, name)):
			longer := name
			if len(prefix) > len(name) {
				longer = prefix
			}
			found, err = r.fencesBelow(ctx, longer, after, limit)
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
func (r *resourceCalls) fencesBelow(ctx context.Context, prefix, after string, limit int) ([]fence.Record, error) {
	ctx, cancel := queryContext(ctx)
	defer cancel()
	found, err := r.fences.List(ctx, prefix, after, limit)
	return found, timeoutOf(ctx, wire.PartPostgres, err)
}

const (
	// shownHeld is how many held resources the live page shows, and shownPages of how many pages.
	shownHeld  = 200
	shownPages = 5
)

// heldBelow returns the first held resources below a prefix. It gives up in time for the page to say so, and to go on
// with its events.
func (r *resourceCalls) heldBelow(ctx context.Context, prefix string) (held []wire.Listed, more bool, err error) {
	ctx, cancel := queryContext(ctx)
	defer cancel()
	ask := listing{prefix: prefix, onlyHeld: true, limit: shownHeld}
	for range shownPages {
		found, err := r.page(ctx, ask)
		switch {
		case err != nil && len(held) > 0 && ctx.Err() != nil: // what was read in time, rather than nothing
			return held, true, nil
		case err != nil:
			return held, false, err
		}
		held = append(held, found.Resources...)
		if found.Next == nil {
			return held, false, nil
		}
		if ask.after, ask.limit = *found.Next, shownHeld-len(held); ask.limit <= 0 {
			break
		}
	}
	return held, true, nil
}
