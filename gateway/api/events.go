package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/gateway/quota"
	"github.com/fencegate/fencegate/wire"
)

const (
	// maxStreams bounds the open event streams: each costs a connection. A principal may have a quarter of them.
	maxStreams = 100
	// heartbeat is the longest silence of a stream, so that its reader and proxies in between know that it is alive.
	heartbeat = 15 * time.Second
)

// eventCalls are the calls about the events of this gateway.
type eventCalls struct {
	events   Events // nil: there are none
	streams  quota.Quota[string]
	stopping context.Context // ends the streams
}

// stream streams the events: the kept ones, then new ones.
func (e *eventCalls) stream(c echo.Context) error {
	query, err := queryOf(c, "follow", "kind")
	switch {
	case err != nil:
		return err
	case e.events == nil:
		return fmt.Errorf("%w: this gateway serves no events", ErrNotImplemented)
	case query.Has("follow") && query.Get("follow") != "true" && query.Get("follow") != "false":
		return &fence.InvalidError{Field: "follow", Reason: "is neither true nor false"}
	case query.Has("kind") && query.Get("kind") != wire.EventRefused:
		return &fence.InvalidError{Field: "kind", Reason: "can only be refused"}
	}
	refused := query.Has("kind")
	p := access.Of(c.Request().Context())
	if !p.MaySome(access.Inspect) {
		return p.Denied(access.Inspect, "")
	}
	leave, ok := e.streams.Take(p.Name(), p.ShareOf(maxStreams))
	if !ok {
		return &leasing.UnavailableError{Part: wire.PartGateway, Cause: errors.New("too many streams of events are open, of this principal or in all")}
	}
	defer leave()
	ctx, cancel := p.Lasts(c.Request().Context())
	defer cancel()
	defer context.AfterFunc(e.stopping, cancel)()
	header := c.Response().Header()
	header.Set(echo.HeaderContentType, "text/event-stream")
	header.Set(echo.HeaderCacheControl, "no-store")
	header.Set("X-Accel-Buffering", "no") // nginx would buffer
	c.Response().WriteHeader(http.StatusOK)
	if send(c, []byte(":\n\n")) != nil { // flushes the header, so that the reader knows it is connected
		return nil
	}
	after := c.Request().Header.Get("Last-Event-ID")
	if query.Get("follow") == "false" {
		for kept := e.kept(refused, after); len(kept) > 0; kept = e.kept(refused, after) {
			if sendEvents(c, visibleTo(p, kept)) != nil {
				return nil
			}
			after = kept[len(kept)-1].ID
		}
		return nil
	}
	for {
		if after, err = e.sendNext(ctx, c, refused, after); err != nil {
			return nil //nolint:nilerr // the reader has gone, or the gateway stops
		}
	}
}

// kept returns the kept events, all or only refusals.
func (e *eventCalls) kept(refused bool, after string) []activity.Event {
	if refused {
		return e.events.RefusedKept(after)
	}
	return e.events.Kept(after)
}

// sendNext sends the next events, or a heartbeat.
func (e *eventCalls) sendNext(ctx context.Context, c echo.Context, refused bool, after string) (string, error) {
	within, cancel := context.WithTimeout(ctx, heartbeat)
	defer cancel()
	since := e.events.Since
	if refused {
		since = e.events.RefusedSince
	}
	for { // an event that the reader may not see triggers no heartbeat, which would reveal its time
		next, err := since(within, after)
		switch {
		case ctx.Err() != nil:
			return after, ctx.Err()
		case err != nil: // time for a heartbeat
			return after, send(c, []byte(":\n\n"))
		}
		after = next[len(next)-1].ID
		if visible := visibleTo(access.Of(ctx), next); len(visible) > 0 {
			return after, sendEvents(c, visible)
		}
	}
}

func sendEvents(c echo.Context, events []activity.Event) error {
	if len(events) == 0 {
		return nil
	}
	var text bytes.Buffer
	for _, e := range events {
		data, err := json.Marshal(e)
		if err != nil {
			return err
		}
		fmt.Fprintf(&text, "id: %s\nevent: %s\ndata: %s\n\n", e.ID, e.Kind, data)
	}
	return send(c, text.Bytes())
}

// send gives a slow reader writeTimeout for each write.
func send(c echo.Context, text []byte) error {
	extendWrite(c)
	if _, err := c.Response().Write(text); err != nil {
		return err
	}
	return http.NewResponseController(c.Response()).Flush()
}

// after waits, until ctx ends, for events that the context's principal may see.
func (e *eventCalls) after(ctx context.Context, after string) (visible []activity.Event, last string, err error) {
	if e.events == nil {
		<-ctx.Done()
		return nil, after, ctx.Err()
	}
	next, err := e.events.Since(ctx, after)
	if err != nil {
		return nil, after, err
	}
	return visibleTo(access.Of(ctx), next), next[len(next)-1].ID, nil
}

// keptAfter is after without the wait, for all events or only refusals.
func (e *eventCalls) keptAfter(refused bool) func(ctx context.Context, after string) (visible []activity.Event, last string) {
	return func(ctx context.Context, after string) (visible []activity.Event, last string) {
		if e.events == nil {
			return nil, after
		}
		kept := e.kept(refused, after)
		if len(kept) == 0 {
			return nil, after
		}
		return visibleTo(access.Of(ctx), kept), kept[len(kept)-1].ID
	}
}

// visibleTo returns the events that a principal may see, with the fields that it may see: the events about a resource
// that it may inspect. A write under one resource's grant to a row that needs another is visible to principals that may
// inspect either, without the other. Events about no resource, and the number of missed events, are visible to
// principals that may inspect everything.
func visibleTo(p *access.Principal, events []activity.Event) (visible []activity.Event) {
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
		visible = append(visible, e)
	}
	return visible
}
