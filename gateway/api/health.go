package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/wire"
)

// checkTimeout bounds one run of all checks.
const checkTimeout = 3 * time.Second

// healthCalls are the calls about the gateway's own state.
type healthCalls struct {
	checks   []Check
	surfaces []string                              // that the gateway has, besides leases
	gateway  func(ctx context.Context) wire.Status // nil: the status has the checks' results only
	runs     map[string]*checkRuns                 // by surface: none waits for parts that it does not need
	leaving  atomic.Bool
}

func newHealthCalls(cfg Config) *healthCalls {
	h := &healthCalls{checks: cfg.Checks, surfaces: cfg.Surfaces, gateway: cfg.Status, runs: make(map[string]*checkRuns, len(surfaces))}
	for _, surface := range surfaces {
		h.runs[surface] = new(checkRuns)
	}
	return h
}

func (h *healthCalls) live(c echo.Context) error {
	return respond(c, http.StatusOK, wire.Health{Status: wire.PartOK})
}

// ready answers 200 if every part serves, else 503 naming the first that does not. It answers 404 from [Server.Leave]
// on.
func (h *healthCalls) ready(c echo.Context) error {
	surface, err := h.surfaceOf(c)
	switch {
	case err != nil:
		return err
	case h.leaving.Load() && c.QueryParam("leaving") == "404":
		return fmt.Errorf("%w: shutting down", ErrNotFound) // for HAProxy: no new clients, old ones continue
	case h.leaving.Load():
		return &leasing.UnavailableError{Part: wire.PartGateway, Cause: errors.New("shutting down")}
	}
	checks, found, err := h.check(c.Request().Context(), surface)
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

var (
	surfaces     = []string{wire.SurfaceLease, wire.SurfaceSQL, wire.SurfacePG, wire.SurfaceS3}
	errNoSurface = errors.New("this gateway has no such port")
)

// surfaceOf parses the surface that /readyz asks for. The default is leases, which need all parts.
func (h *healthCalls) surfaceOf(c echo.Context) (string, error) {
	query, err := queryOf(c, "for", "leaving")
	if err != nil {
		return "", err
	}
	surface := cmp.Or(query.Get("for"), wire.SurfaceLease)
	switch {
	case !slices.Contains(surfaces, surface):
		return "", &fence.InvalidError{Field: "for", Reason: "is none of " + strings.Join(surfaces, ", ")}
	case query.Has("leaving") && query.Get("leaving") != "404":
		return "", &fence.InvalidError{Field: "leaving", Reason: "can be 404 only"}
	case surface != wire.SurfaceLease && !slices.Contains(h.surfaces, surface):
		return "", &leasing.UnavailableError{Part: wire.PartGateway, Cause: errNoSurface}
	}
	return surface, nil
}

// status answers with the gateway's status, also while PostgreSQL or the lock is away.
func (h *healthCalls) status(c echo.Context) error {
	answer, err := h.statusFor(c.Request().Context())
	if err != nil {
		return err
	}
	return respond(c, http.StatusOK, answer)
}

// statusFor returns what the context's principal may know of the gateway's status. Only principals that may inspect
// everything get the gateway's totals and the nodes' names.
func (h *healthCalls) statusFor(ctx context.Context) (wire.Status, error) {
	p := access.Of(ctx)
	if !p.MaySome(access.Inspect) {
		return wire.Status{}, p.Denied(access.Inspect, "")
	}
	checks, found, err := h.check(ctx, wire.SurfaceLease)
	if err != nil {
		return wire.Status{}, err
	}
	var answer wire.Status
	if h.gateway != nil {
		answer = h.gateway(ctx)
	}
	answer.Ready = !h.leaving.Load()
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
		answer.Lock.Nodes = withoutNames(answer.Lock.Nodes)
	}
	if !p.May(access.Sessions, "") {
		answer.Sessions = nil
	}
	answer.StartedAt = answer.StartedAt.UTC()
	return answer, nil
}

// check returns the checks of a surface, and what a run of them found. The error is ctx's.
func (h *healthCalls) check(ctx context.Context, surface string) (checks []Check, found []error, err error) {
	for _, one := range h.checks {
		if one.For == nil || slices.Contains(one.For, surface) {
			checks = append(checks, one)
		}
	}
	found, err = h.runs[surface].take(ctx, checks)
	return checks, found, err
}

// checkRuns shares one run of the checks among the requests that arrive while it lasts: /readyz needs no token, and
// each run takes connections that leases need, too.
type checkRuns struct {
	mu  sync.Mutex
	now *checkRun // nil: none is running
}

type checkRun struct {
	ended chan struct{}
	found []error // by each check; valid once ended is closed
}

// take returns the results of a run, which may have begun earlier. The error is ctx's.
func (r *checkRuns) take(ctx context.Context, checks []Check) ([]error, error) {
	r.mu.Lock()
	run := r.now
	if run != nil {
		r.mu.Unlock()
		select {
		case <-run.ended:
			return run.found, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	run = &checkRun{ended: make(chan struct{}), found: make([]error, len(checks))}
	r.now = run
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.now = nil
		r.mu.Unlock()
		close(run.ended)
	}()
	// The run continues for all waiting requests if the one that began it is cancelled.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
	defer cancel()
	var running sync.WaitGroup
	for i, check := range checks {
		running.Go(func() { run.found[i] = check.Run(ctx) })
	}
	running.Wait()
	return run.found, nil
}
