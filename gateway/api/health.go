package api

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/wire"
)

// checkTimeout bounds one run of all checks.
const checkTimeout = 3 * time.Second

func (s *Server) health(c echo.Context) error {
	return respond(c, http.StatusOK, wire.Health{Status: wire.PartOK})
}

// ready answers 200 if every part serves, else 503 naming the first that does not. It answers 404 from [Server.Leave]
// on.
func (s *Server) ready(c echo.Context) error {
	surface, err := s.surfaceOf(c)
	switch {
	case err != nil:
		return err
	case s.leaving.Load() && c.QueryParam("leaving") == "404":
		return fmt.Errorf("%w: shutting down", ErrNotFound) // for HAProxy: no new clients, old ones continue
	case s.leaving.Load():
		return &leasing.UnavailableError{Part: wire.PartGateway, Cause: errors.New("shutting down")}
	}
	checks := s.checksFor(surface)
	found, err := s.looks[surface].take(c.Request().Context(), checks)
	if err != nil {
		return err
	}
	parts, degraded, notes := make(map[string]string, len(found)), make(map[string]string), make(map[string]string)
	for i, err := range found {
		part := checks[i].Part
		less, serves := errors.AsType[*DegradedError](err)
		if err != nil && (!serves || surface != wire.SurfaceLease) { // another surface is what is missing
			return &leasing.UnavailableError{Part: part, Cause: err}
		}
		if checks[i].Note != "" {
			notes[part] = checks[i].Note
		}
		if parts[part] = wire.PartOK; serves {
			degraded[part] = less.What
		}
	}
	return respond(c, http.StatusOK, wire.Readiness{Status: "ready", Parts: parts, Degraded: degraded, Notes: notes})
}

// surfaceOf parses the surface that /readyz asks for. The default is leases, which need all parts.
func (s *Server) surfaceOf(c echo.Context) (string, error) {
	query, err := queryOf(c, "for", "leaving")
	if err != nil {
		return "", err
	}
	surface := cmp.Or(query.Get("for"), wire.SurfaceLease)
	switch {
	case s.looks[surface] == nil:
		return "", &fence.InvalidError{Field: "for", Reason: "is none of " + strings.Join(surfaces, ", ")}
	case query.Has("leaving") && query.Get("leaving") != "404":
		return "", &fence.InvalidError{Field: "leaving", Reason: "can be 404 only"}
	case surface != wire.SurfaceLease && !slices.Contains(s.cfg.Surfaces, surface):
		return "", &leasing.UnavailableError{Part: wire.PartGateway, Cause: errNoSurface}
	}
	return surface, nil
}

var (
	surfaces     = []string{wire.SurfaceLease, wire.SurfaceSQL, wire.SurfacePG, wire.SurfaceS3}
	errNoSurface = errors.New("this gateway has no such port")
)

// newLooks returns one looks per surface: a request for one does not wait for parts that it does not need.
func newLooks() map[string]*looks {
	all := make(map[string]*looks, len(surfaces))
	for _, surface := range surfaces {
		all[surface] = new(looks)
	}
	return all
}

func (s *Server) checksFor(surface string) (all []Check) {
	for _, check := range s.cfg.Checks {
		if check.For == nil || slices.Contains(check.For, surface) {
			all = append(all, check)
		}
	}
	return all
}

func (s *Server) metrics(c echo.Context) error {
	if s.cfg.Metrics == nil {
		return fmt.Errorf("%w: this gateway keeps no metrics", ErrNotImplemented)
	}
	extendWrite(c)
	s.cfg.Metrics.ServeHTTP(c.Response(), c.Request())
	return nil
}

// looks shares one run of the checks among the requests that arrive while it lasts: /readyz needs no token, and each
// run takes connections that leases need, too.
type looks struct {
	mu  sync.Mutex
	now *look // nil: none is running
}

type look struct {
	ended chan struct{}
	found []error // by each check; valid once ended is closed
}

// take returns the results of a run, which may have begun earlier. The error is ctx's.
func (l *looks) take(ctx context.Context, checks []Check) ([]error, error) {
	l.mu.Lock()
	found := l.now
	if found != nil {
		l.mu.Unlock()
		select {
		case <-found.ended:
			return found.found, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	found = &look{ended: make(chan struct{}), found: make([]error, len(checks))}
	l.now = found
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		l.now = nil
		l.mu.Unlock()
		close(found.ended)
	}()
	// The run continues for all waiting requests if the one that began it is cancelled.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
	defer cancel()
	var running sync.WaitGroup
	for i, check := range checks {
		running.Go(func() { found.found[i] = check.Run(ctx) })
	}
	running.Wait()
	return found.found, nil
}

//go:embed openapi.json
var openAPIDocument []byte

func openAPI(c echo.Context) error {
	extendWrite(c)
	return c.Blob(http.StatusOK, echo.MIMEApplicationJSON, openAPIDocument)
}
