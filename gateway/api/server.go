package api

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/fencegate/fencegate/gateway/access"
	"github.com/fencegate/fencegate/internal/tlsfiles"
)

// Server serves the API. It is safe for concurrent use.
type Server struct {
	cfg        Config
	log        *slog.Logger
	handles    *sealer
	looks      map[string]*looks // by surface
	echo       *echo.Echo
	remembered *remembered // idempotency keys
	places     places
	rates      rates
	streams    *access.Shares // the open event streams

	toldFull atomic.Int64 // when the log last reported that all connections are taken; Unix nanoseconds

	leaving  atomic.Bool
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
	s := &Server{cfg: cfg, log: slog.New(identified{cfg.Logger.Handler()}), remembered: newRemembered(), handles: handles, looks: newLooks(), places: places{each: cfg.SQLPerPrincipal}, rates: rates{each: cfg.PrincipalRate}, streams: access.NewShares(maxStreams), echo: echo.New()}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.routes()
	return s, nil
}

func (s *Server) routes() {
	e := s.echo
	e.HideBanner, e.HidePort = true, true
	e.HTTPErrorHandler = s.fail
	e.Use(identify, s.observe, s.limitBody)
	for _, r := range Routes() {
		s.route(r)
	}
	s.livePage(e)
}

// Leave makes /readyz fail from now on. Everything else continues.
func (s *Server) Leave() { s.leaving.Store(true) }

// Leaving reports whether Leave was called.
func (s *Server) Leaving() bool { return s.leaving.Load() }

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
	LimitConnections(srv, s.cfg.MaxConnections, s.tellFull)
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

// tellFull logs a warning, rate limited, that a client was turned away.
func (s *Server) tellFull() {
	const every = time.Minute
	now := time.Now().UnixNano()
	if last := s.toldFull.Load(); now-last >= int64(every) && s.toldFull.CompareAndSwap(last, now) {
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
