package api

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/gateway/page"
	"github.com/fencegate/fencegate/gateway/quota"
	"github.com/fencegate/fencegate/internal/tlsfiles"
	"github.com/fencegate/fencegate/wire"
)

// Server serves the API. It is safe for concurrent use.
type Server struct {
	cfg     Config
	log     *slog.Logger
	journal *journal
	auth    *authenticator
	health  *healthCalls
	echo    *echo.Echo

	fullAt atomic.Int64 // when the log last reported that all connections are taken; Unix nanoseconds

	stopping context.Context // ends when the server is asked to stop; ends waits
	stop     context.CancelFunc
}

// New creates a server. The error is a [*fence.InvalidError] that names a field of cfg.
func New(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	handles, err := newSealer(cfg.Handles)
	if err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	log := slog.New(idHandler{cfg.Logger.Handler()})
	s := &Server{
		cfg: cfg, log: log, echo: echo.New(), health: newHealthCalls(cfg),
		journal: &journal{log: log, events: cfg.Events, principals: cfg.Principals != nil},
		auth:    &authenticator{principals: cfg.Principals, bearerToken: cfg.BearerToken, rates: rates{each: cfg.PrincipalRate}},
	}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.route(handles)
	return s, nil
}

// route registers the calls and the live page with the router.
func (s *Server) route(handles *sealer) {
	cfg := s.cfg
	leases := &leaseCalls{cfg: cfg, handles: handles, keys: newRecentKeys(), journal: s.journal, log: s.log, stopping: s.stopping}
	credentials := &credentialCalls{
		credentials: cfg.Credentials, leases: cfg.Leases, fences: cfg.Fences, handles: handles, journal: s.journal, endpoints: cfg.Endpoints,
	}
	sql := &sqlCalls{sql: cfg.SQL, leases: cfg.Leases, journal: s.journal, log: s.log, each: cfg.SQLPerPrincipal}
	resources := &resourceCalls{leases: cfg.Leases, fences: cfg.Fences, journal: s.journal, log: s.log}
	buckets := &bucketCalls{buckets: cfg.Buckets, journal: s.journal}
	sessions := &sessionCalls{sessions: cfg.Sessions, journal: s.journal}
	events := &eventCalls{events: cfg.Events, streams: quota.Quota[string]{All: maxStreams}, stopping: s.stopping}
	calls := map[string]echo.HandlerFunc{ // by [Route.ID]
		"acquire": leases.acquire, "acquireAll": leases.acquireAll, "renew": leases.renew, "release": leases.release,
		"credentials": credentials.issue, "endpoints": credentials.showEndpoints,
		"sql": sql.execute, "check": sql.check,
		"list": resources.list, "inspect": resources.inspect, "revoke": resources.revoke,
		"listBuckets": buckets.list, "inspectBucket": buckets.inspect, "ensureBucket": buckets.ensure,
		"setPrefixRule": buckets.setRule, "dropPrefixRule": buckets.dropRule,
		"sessions": sessions.list, "endSession": sessions.end,
		"events": events.stream,
		"status": s.health.status, "health": s.health.live, "ready": s.health.ready,
		"metrics": s.metrics, "openapi": openAPI,
	}
	e := s.echo
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = s.fail
	e.Use(identify, s.observe, s.limitBody)
	for _, r := range Routes() {
		// No group: a group with middleware answers 404 instead of 405.
		var before []echo.MiddlewareFunc
		if !r.Open {
			before = append(before, s.auth.authenticate)
		}
		if r.Gateway {
			before = append(before, requireRight(r.Rights[0]))
		}
		e.Add(r.Method, r.pattern(), calls[r.ID], before...)
	}
	s.routePage(resources, events)
}

// routePage registers the live page beside the API, with the same access.
func (s *Server) routePage(resources *resourceCalls, events *eventCalls) {
	cfg := page.Config{
		Host: func(host string) bool { return !s.auth.open() || loopbackHost(host) }, Status: s.health.statusFor, ListHeld: resources.heldBelow,
		Events: events.after, Kept: events.keptAfter(false), Refused: events.keptAfter(true),
		Inspect: resources.stateOf, Revoke: resources.takeAway, Logger: s.log,
		Denied:  func(r *http.Request, denied *access.DeniedError) { s.journal.denial(r, denied, r.URL.Path) },
		Problem: func(err error) wire.Problem { p, _ := problemOf(err); return p },
	}
	if !s.auth.open() {
		cfg.Know = s.auth.ofToken
		cfg.Limit = func(p *access.Principal) error { return s.auth.rates.check(p.Name()) }
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
		s.echo.GET(path, h)
	}
	for _, path := range []string{"/page/login", "/page/logout", "/page/revoke"} {
		s.echo.POST(path, h)
	}
}

// Leave makes /readyz fail from now on. Everything else continues.
func (s *Server) Leave() { s.health.leaving.Store(true) }

// Leaving reports whether Leave was called.
func (s *Server) Leaving() bool { return s.health.leaving.Load() }

// Handler is the API without a listener.
func (s *Server) Handler() http.Handler { return s.echo }

// Serve serves the connections that ln accepts until ctx ends. It then closes ln, ends waits, lets requests finish
// within the drain timeout, and returns nil when none is left. A Server serves once.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	defer s.stop()
	// No ReadTimeout: its deadline would end a request that waits for a lease.
	// Bodies have a deadline of their own.
	srv := &http.Server{
		Handler:           s.echo,
		ConnContext:       tlsfiles.ConnContext,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	LimitConnections(srv, s.cfg.MaxConnections, s.warnFull)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(tlsfiles.Listener(ln, s.cfg.TLS)) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	s.stop()
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.DrainTimeout)
	defer cancel()
	if err := srv.Shutdown(drain); err != nil {
		s.log.Warn("requests were cut off by the stop", "after", s.cfg.DrainTimeout)
		_ = srv.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// warnFull logs, at most once a minute, that a client was turned away.
func (s *Server) warnFull() {
	const every = time.Minute
	now := time.Now().UnixNano()
	if last := s.fullAt.Load(); now-last >= int64(every) && s.fullAt.CompareAndSwap(last, now) {
		s.log.Warn("the HTTP API closed a new connection: all connections are in use", "connections", s.cfg.MaxConnections, "hint", "--api-max-connections")
	}
}

// observe reports each request to the metrics. It turns errors into answers first, so that it knows their status.
func (s *Server) observe(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		began := time.Now()
		if err := next(c); err != nil {
			s.fail(err, c)
		}
		if s.cfg.Observe != nil {
			s.cfg.Observe(c.Path(), c.Request().Method, c.Response().Status, time.Since(began))
		}
		return nil
	}
}

// limitBody bounds the reading of a body on every path: net/http reads the rest of a body before it sends an answer,
// even a refusal, and would wait forever. Only reading the body to its end removes the limit.
func (s *Server) limitBody(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if c.Request().ContentLength != 0 {
			_ = http.NewResponseController(c.Response()).SetReadDeadline(time.Now().Add(s.cfg.BodyTimeout)) // a test's recorder has no deadlines
		}
		return next(c)
	}
}

// fail writes err as a problem. It is echo's error handler.
func (s *Server) fail(err error, c echo.Context) {
	ctx := c.Request().Context()
	if c.Response().Committed {
		return
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		c.Response().Status = statusClientGone // nobody reads the answer
		return
	}
	if denied, ok := errors.AsType[*access.DeniedError](err); ok {
		s.journal.denial(c.Request(), denied, c.Path())
	}
	p, known := problemOf(err)
	switch {
	case !known:
		s.log.ErrorContext(ctx, "a request failed", "method", c.Request().Method, "route", c.Path(), "error", err)
	case p.Status >= http.StatusInternalServerError:
		s.log.WarnContext(ctx, "a request failed", "method", c.Request().Method, "route", c.Path(), "code", p.Code, "error", err)
	}
	p.RequestID = requestID(ctx)
	header := c.Response().Header()
	if p.RetryAfterMS > 0 {
		header.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(float64(p.RetryAfterMS)/1000)), 10))
	}
	if p.Status == http.StatusUnauthorized {
		header.Set("WWW-Authenticate", `Bearer realm="fencegate"`)
	}
	header.Set(echo.HeaderContentType, "application/problem+json")
	extendWrite(c)
	c.Response().WriteHeader(p.Status)
	enc := json.NewEncoder(c.Response())
	enc.SetEscapeHTML(false)
	_ = enc.Encode(p) // the client may have gone
}

// statusClientGone is the status in the metrics for a client that disconnected.
const statusClientGone = 499

func (s *Server) metrics(c echo.Context) error {
	if s.cfg.Metrics == nil {
		return fmt.Errorf("%w: this gateway keeps no metrics", ErrNotImplemented)
	}
	extendWrite(c)
	s.cfg.Metrics.ServeHTTP(c.Response(), c.Request())
	return nil
}

//go:embed openapi.json
var openAPIDocument []byte

func openAPI(c echo.Context) error {
	extendWrite(c)
	return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, openAPIDocument)
}
