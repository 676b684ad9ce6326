package s3

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/gofiber/fiber/v3"

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
	stop    context.CancelFunc // of the backend's work
}

// New makes a server. It connects to nothing yet.
func New(deps Deps, o Options) (*Server, error) {
	cfg, err := configOf(deps, o)
	if err != nil {
		return nil, err
	}
	base, stop := context.WithCancel(context.Background())
	be, err := newBackend(base, cfg)
	if err != nil {
		stop()
		return nil, err
	}
	s := &Server{cfg: cfg, backend: be, stop: stop, gate: &gate{cfg: cfg}}
	s.app = newApp(cfg, be, s.gate)
	edge.Guard(s.app.Server(), cfg.timeouts(), cfg.Logger)
	return s, nil
}

// Catalog is what the server has of buckets and objects.
func (s *Server) Catalog() *objects.Catalog { return s.backend.catalog }

// SawDatabase tells which PostgreSQL a connection leads to, as fence.identity names
// it; "" one that may have lost what it acknowledged. What is remembered of another
// one is forgotten.
func (s *Server) SawDatabase(identity string) { s.backend.reader.Saw(identity) }

// Keeper keeps the server's blob store and its database in agreement.
func (s *Server) Keeper() *maintenance.Keeper { return s.backend.keeper }

// Serve answers requests on the listener until ctx is done; then it takes no
// more, waits up to the drain timeout for those under way, cuts off the rest, and
// returns. Call it once. The listener is closed in any case.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	defer s.stop()
	defer s.backend.writer.Close()
	ended := make(chan error, 1)
	go func() {
		plain := &edge.Listener{Listener: ln, Stall: s.cfg.StallTimeout, Limit: s.cfg.MaxConnections, Conns: &s.conns, Log: s.cfg.Logger}
		ended <- s.app.Listener(tlsfiles.Listener(plain, s.cfg.TLS), fiber.ListenConfig{DisableStartupMessage: true})
	}()
	select {
	case err := <-ended:
		_ = ln.Close() // where the server failed before it listened
		return fmt.Errorf("s3: listen: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.DrainTimeout)
	defer cancel()
	err := s.app.ShutdownWithContext(drain)
	_ = ln.Close() // where the server had not yet begun to listen
	if drain.Err() != nil {
		err = nil
		s.cutOff()
	}
	return errors.Join(err, <-ended)
}

// cutOff ends the requests that outlast the drain timeout, and lets them give up
// what they have begun.
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

// Stats is what the server does now, and bytes since it was made.
type Stats struct {
	Connections int64 // open
	Requests    int64 // at work
	Uploads     int64 // of them
	BytesIn     int64 // from clients, TLS and headers included
	BytesOut    int64
}

// Stats reports what the server does.
func (s *Server) Stats() Stats {
	return Stats{
		Connections: int64(s.conns.Count()), Requests: s.gate.requests.Load(), Uploads: s.gate.uploads.Load(),
		BytesIn: s.conns.In.Load(), BytesOut: s.conns.Out.Load(),
	}
}
