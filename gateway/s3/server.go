package s3

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/s3api/controllers"
	"github.com/versity/versitygw/s3api/middlewares"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
	"github.com/fencegate/fencegate/gateway/s3/edge"
	"github.com/fencegate/fencegate/internal/tlsfiles"
)

// Server is a fenced S3 endpoint. Its methods are safe for concurrent use.
type Server struct {
	cfg     config
	app     *fiber.App
	backend *backend
	gate    *gate
	conns   edge.Connections
	stop    context.CancelFunc // ends the backend's work
}

// New creates a server. It does not connect yet.
func New(deps Deps, o Options) (*Server, error) {
	cfg, err := configOf(deps, o)
	if err != nil {
		return nil, err
	}
	base, stop := context.WithCancel(context.Background())
	uploads := &slots{limit: int64(cfg.MaxUploads)}
	be, err := newBackend(base, cfg, uploads)
	if err != nil {
		stop()
		return nil, err
	}
	routes := newRouter(routeTable, otherSubresources)
	s := &Server{cfg: cfg, backend: be, stop: stop, gate: newGate(cfg, uploads, routes)}
	s.app = newApp(cfg, be, s.gate, routes)
	edge.Guard(s.app.Server(), cfg.timeouts(), cfg.Logger)
	return s, nil
}

// headerSize bounds the request line and headers, in bytes.
const headerSize = 8 << 10

func newApp(cfg config, be *backend, g *gate, r *router) *fiber.App {
	p := newPort(cfg, be, r)
	app := fiber.New(fiber.Config{
		StreamRequestBody: true,
		ReadBufferSize:    headerSize,
		Concurrency:       cfg.MaxConnections + edge.Refusers + 1, // the listener enforces the limit
		ErrorHandler:      g.failed,
	})
	app.Use("*", g.rescue, middlewares.DrainRequestBody(), middlewares.RequestIDs(), g.handle,
		middlewares.SetDefaultValues(p.root, cfg.Region), controllers.WrapMiddleware(middlewares.DecodeURL, nil, operations{}))
	if cfg.Domain != "" {
		app.Use("*", middlewares.HostStyleParser(cfg.Domain))
	}
	app.All("/:bucket/*", p.dispatch) // versitygw's operations read the bucket parameter
	app.All("*", p.dispatch)
	return app
}

// Catalog returns the server's catalog of buckets and objects.
func (s *Server) Catalog() *objects.Catalog { return s.backend.catalog }

// SawDatabase reports which PostgreSQL a connection leads to, as fence.identity names it; "" for one that may have lost
// acknowledged writes. The server drops its cache of another one.
func (s *Server) SawDatabase(identity string) { s.backend.reader.Saw(identity) }

// Keeper returns the keeper of the server's blob store and database.
func (s *Server) Keeper() *maintenance.Keeper { return s.backend.keeper }

// Serve serves requests on the listener until ctx is done. Then it accepts no more, waits up to the drain timeout for
// those in progress, cuts off the rest, and returns. Call it once. It closes the listener in any case.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	defer s.stop()
	defer s.backend.writer.Close()
	defer s.backend.copies.stop(s.cfg.DatabaseTimeout)
	ended := make(chan error, 1)
	go func() {
		plain := &edge.Listener{Listener: ln, Stall: s.cfg.StallTimeout, Linger: s.cfg.lingering, Limit: s.cfg.MaxConnections, Conns: &s.conns, Log: s.cfg.Logger}
		ended <- s.app.Listener(tlsfiles.Listener(plain, s.cfg.TLS), fiber.ListenConfig{DisableStartupMessage: true})
	}()
	select {
	case err := <-ended:
		_ = ln.Close() // if the server failed before it listened
		return fmt.Errorf("s3: listen: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.DrainTimeout)
	defer cancel()
	err := s.app.ShutdownWithContext(drain)
	_ = ln.Close() // if the server had not begun to listen
	if drain.Err() != nil {
		err = nil
		s.cutOff()
	}
	return errors.Join(err, <-ended)
}

// cutOff ends the requests that exceed the drain timeout, and lets them discard what they have begun.
func (s *Server) cutOff() {
	s.cfg.Logger.Warn("s3: requests were cut off by the stop", "after", s.cfg.DrainTimeout, "connections", s.conns.Count())
	s.conns.Cut()
	tick, limit := time.NewTicker(10*time.Millisecond), time.After(s.cfg.DatabaseTimeout)
	defer tick.Stop()
	for s.conns.Count() > 0 {
		select {
		case <-tick.C:
		case <-limit:
			return
		}
	}
}

// Stats holds the server's current load, and its bytes since it was created.
type Stats struct {
	Connections int64 // open
	Requests    int64 // in progress
	Uploads     int64 // among Requests, and copies
	BytesIn     int64 // from clients, TLS and headers included
	BytesOut    int64
}

// Stats returns the server's statistics.
func (s *Server) Stats() Stats {
	return Stats{
		Connections: int64(s.conns.Count()), Requests: s.gate.requests.Load(), Uploads: s.gate.uploads.used.Load(),
		BytesIn: s.conns.In.Load(), BytesOut: s.conns.Out.Load(),
	}
}
