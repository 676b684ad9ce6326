package api

import (
	"context"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/page"
	"github.com/fencegate/fencegate/wire"
)

const (
	// pageHeld is how many resources the live page shows, and pageLooks of how many pages.
	pageHeld  = 200
	pageLooks = 5
)

// livePage serves the live page beside the API, with the same access.
func (s *Server) livePage(e *echo.Echo) {
	cfg := page.Config{
		Host: func(host string) bool { return !s.open() || loopbackHost(host) }, Status: s.currentStatus, Held: s.heldBelow,
		Events: s.eventsAfter, Kept: s.keptAfter(false), Refused: s.keptAfter(true), Inspect: s.inspected, Revoke: s.takeAway, Logger: s.log,
		Denied:  func(r *http.Request, denied *access.DeniedError) { s.auditDenied(r, denied, r.URL.Path) },
		Problem: func(err error) wire.Problem { p, _ := problemOf(err); return p },
	}
	if !s.open() {
		cfg.Know = s.known
		cfg.Limit = func(p *access.Principal) error { return s.rates.check(p.Name()) }
	}
	p := page.New(cfg)
	h := func(c echo.Context) error {
		ctx, cancel := context.WithCancel(c.Request().Context())
		defer cancel()
		defer context.AfterFunc(s.stopping, cancel)() // a stopping gateway ends the streams
		extendWrite(c)
		p.ServeHTTP(c.Response(), c.Request().WithContext(ctx))
		return nil
	}
	for _, path := range []string{"/", "/page/events", "/page/revoke", "/page/app.js", "/page/style.css"} {
		e.GET(path, h)
	}
	for _, path := range []string{"/page/login", "/page/logout", "/page/revoke"} {
		e.POST(path, h)
	}
}

// heldBelow returns the first held resources below a prefix. It gives up in time for the page to say so, and to go on
// with its events.
func (s *Server) heldBelow(ctx context.Context, prefix string) (held []wire.Listed, more bool, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	ask := listing{prefix: prefix, held: true, limit: pageHeld}
	for range pageLooks {
		found, err := s.page(ctx, ask)
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
		if ask.after, ask.limit = *found.Next, pageHeld-len(held); ask.limit <= 0 {
			break
		}
	}
	return held, true, nil
}

// eventsAfter waits, until ctx ends, for events that the context's principal may see.
func (s *Server) eventsAfter(ctx context.Context, after string) (told []activity.Event, last string, err error) {
	if s.cfg.Events == nil {
		<-ctx.Done()
		return nil, after, ctx.Err()
	}
	next, err := s.cfg.Events.Since(ctx, after)
	if err != nil {
		return nil, after, err
	}
	return toldTo(access.Of(ctx), next), next[len(next)-1].ID, nil
}

// keptAfter is eventsAfter without the wait, for all events or only refusals.
func (s *Server) keptAfter(refused bool) func(ctx context.Context, after string) (told []activity.Event, last string) {
	return func(ctx context.Context, after string) (told []activity.Event, last string) {
		if s.cfg.Events == nil {
			return nil, after
		}
		kept := s.kept(refused, after)
		if len(kept) == 0 {
			return nil, after
		}
		return toldTo(access.Of(ctx), kept), kept[len(kept)-1].ID
	}
}
