package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/wire"
)

const (
	// maxStreams bounds the open event streams: each costs a connection. A principal may have a quarter of them.
	maxStreams = 100
	// heartbeat is the longest silence of a stream, so that its reader and proxies in between know that it is alive.
	heartbeat = 15 * time.Second
)

// events streams the events of this gateway: the kept ones, then new ones.
func (s *Server) events(c echo.Context) error {
	query, err := queryOf(c, "follow", "kind")
	switch {
	case err != nil:
		return err
	case s.cfg.Events == nil:
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
	leave, ok := s.streams.Take(p)
	if !ok {
		return &leasing.UnavailableError{Part: wire.PartGateway, Cause: errors.New("too many streams of events are open, of this principal or in all")}
	}
	defer leave()
	ctx, cancel := p.Lasts(c.Request().Context())
	defer cancel()
	defer context.AfterFunc(s.stopping, cancel)()
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
		for kept := s.kept(refused, after); len(kept) > 0; kept = s.kept(refused, after) {
			if sendEvents(c, toldTo(p, kept)) != nil {
				return nil
			}
			after = kept[len(kept)-1].ID
		}
		return nil
	}
	for {
		if after, err = s.stream(ctx, c, refused, after); err != nil {
			return nil //nolint:nilerr // the reader has gone, or the gateway stops
		}
	}
}

// kept returns the kept events, all or only refusals.
func (s *Server) kept(refused bool, after string) []activity.Event {
	if refused {
		return s.cfg.Events.RefusedKept(after)
	}
	return s.cfg.Events.Kept(after)
}

// stream sends the next events, or a heartbeat.
func (s *Server) stream(ctx context.Context, c echo.Context, refused bool, after string) (string, error) {
	within, cancel := context.WithTimeout(ctx, heartbeat)
	defer cancel()
	since := s.cfg.Events.Since
	if refused {
		since = s.cfg.Events.RefusedSince
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
		if told := toldTo(access.Of(ctx), next); len(told) > 0 {
			return after, sendEvents(c, told)
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

// tell records an event of a request, if Events is set.
func (s *Server) tell(c echo.Context, e activity.Event) { s.tellOf(c.Request(), e) }

func (s *Server) tellOf(r *http.Request, e activity.Event) {
	if s.cfg.Events == nil {
		return
	}
	e.Client, e.App = r.RemoteAddr, r.UserAgent()
	s.cfg.Events.Tell(activity.Cleaned(e))
}

// tellLease records an event about a lease.
func (s *Server) tellLease(c echo.Context, kind string, ref leasing.Ref) {
	e := activity.Event{Kind: kind, Surface: wire.SurfaceAPI, Resource: ref.Resource}
	if kind == wire.EventAcquired {
		e.Recorded = ref.Token
	} else {
		e.Presented = ref.Token
	}
	s.tell(c, e)
}

// kinds are the SQL commands that an event may name.
var kinds = []string{"INSERT", "UPDATE", "DELETE", "TRUNCATE", "MERGE", "SELECT", "WITH", "CALL", "DO"}

// kindOf returns the command with which a statement begins; else "".
func kindOf(sql string) string {
	for word := range strings.FieldsSeq(sql) {
		if word = strings.ToUpper(word); slices.Contains(kinds, word) {
			return word
		}
		break
	}
	return ""
}

// tellRefused records that the fence refused a request for SQL, in one of its statements or before the first one.
func (s *Server) tellRefused(c echo.Context, statements []wire.Statement, err error) {
	about := activity.Event{Surface: wire.SurfaceSQL, Statement: kindOf(statements[0].SQL)}
	if st, ok := errors.AsType[*StatementError](err); ok {
		about.Statement, about.Table = st.Operation, st.Table
	}
	if e, ok := activity.Refused(err, about); ok {
		s.tell(c, e)
	}
}
