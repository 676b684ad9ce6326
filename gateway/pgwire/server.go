package pgwire

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Server relays PostgreSQL sessions. It is safe for concurrent use.
type Server struct {
	services

	aborted chan struct{} // closed by Abort
	abort   func()
}

// Stats counts since the server was created, unless stated otherwise.
type Stats struct {
	Connections int64 // accepted, including those refused later
	Sessions    int64 // that reached their first ReadyForQuery
	Active      int64 // open now
	Refused     int64 // connections that this relay refused with its own error
	Cancels     int64 // cancel requests passed on
	Superseded  int64 // sessions ended because their grant was superseded
}

// New creates a server. The error is a [*fence.InvalidError] that names a field of cfg.
func New(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Server{aborted: make(chan struct{}), services: services{
		cfg: cfg, log: cfg.Logger,
		counters: counters{Metrics: cfg.Metrics},
		limits: limits{
			maxConnections: cfg.MaxConnections, maxAddressLogins: cfg.MaxAddressLogins, maxUserConnections: cfg.MaxUserConnections,
			proxies: cfg.ProxyNetworks,
		},
		upstreams: upstreams{
			ways: cfg.ways(), suitable: cfg.Suitable, endBackend: cfg.EndBackend, timeout: cfg.DialTimeout, keepAlive: cfg.KeepAlive,
		},
		fences:         fences{recorded: cfg.Fences, timeout: cfg.DialTimeout, every: cfg.FencesEvery, log: cfg.Logger},
		authentication: authentication{clientTLS: cfg.TLS, encrypts: cfg.UpstreamTLS != nil, log: cfg.Logger},
	}}
	s.rules.Store(&cfg.Rules)
	s.upstreams.cancels, s.authentication.upstreams, s.fences.sessions = &s.counters.cancels, &s.upstreams, &s.sessions
	s.abort = sync.OnceFunc(func() { close(s.aborted) })
	return s, nil
}

// Stats returns the server's counters.
func (s *Server) Stats() Stats {
	return Stats{
		Connections: s.counters.connections.Load(),
		Sessions:    s.counters.sessions.Load(),
		Active:      s.counters.active.Load(),
		Refused:     s.counters.refused.Load(),
		Cancels:     s.counters.cancels.Load(),
		Superseded:  s.counters.superseded.Load(),
	}
}

// Serve relays the connections that the listeners accept until ctx ends. It then closes the listeners, ends each
// session as soon as it is idle outside a transaction, and after the drain timeout the rest. It returns nil after a
// stop by ctx, when no session is left. A Server serves once.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	accepting, stopAccepting := context.WithCancel(ctx)
	defer stopAccepting()
	context.AfterFunc(accepting, func() {
		for _, ln := range listeners {
			_ = ln.Close()
		}
	})
	var running, watching sync.WaitGroup
	watched, stopWatching := context.WithCancel(context.WithoutCancel(ctx)) // also while sessions are drained
	defer watching.Wait()
	defer stopWatching()
	if s.cfg.Fences != nil {
		watching.Go(func() { s.fences.watch(watched) })
	}
	watching.Go(func() {
		s.sessions.watchIdle(watched, idleTimeouts{s.cfg.IdleTimeout, s.cfg.IdleInTransactionTimeout, s.cfg.SlowClientTimeout})
	})
	errs := make([]error, len(listeners))
	var listening sync.WaitGroup
	for i, ln := range listeners {
		listening.Go(func() {
			defer stopAccepting() // one failed listener stops all
			errs[i] = s.accept(accepting, ln, &running)
		})
	}
	listening.Wait()
	s.drain(&running)
	return errors.Join(errs...)
}

func (s *Server) accept(ctx context.Context, ln net.Listener, running *sync.WaitGroup) error {
	var pause time.Duration
	for {
		conn, err := ln.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil:
			// Usually out of file descriptors: wait until some are free.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			s.log.Warn("failed to accept a PostgreSQL connection", "error", err, "retry_in", pause)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			continue
		}
		pause = 0
		s.counters.connections.Add(1)
		place, ok := s.limits.take(conn)
		if !ok {
			_ = conn.Close()
			continue
		}
		h := newHandler(&s.services, conn, place)
		if !s.sessions.add(h.session) {
			place.leave()
			_ = conn.Close()
			continue
		}
		running.Go(func() {
			defer s.sessions.remove(h.session)
			defer h.session.recoverPanic()
			h.serve(ctx)
		})
	}
}

// Abort ends the sessions that a stopping [Server.Serve] waits for, now or later. It does not wait.
func (s *Server) Abort() { s.abort() }

// drain ends the sessions and returns when none is left.
func (s *Server) drain(running *sync.WaitGroup) {
	s.sessions.stop()
	gone := make(chan struct{})
	go func() {
		running.Wait()
		close(gone)
	}()
	s.sessions.end(draining)
	timeout := time.NewTimer(s.cfg.DrainTimeout)
	defer timeout.Stop()
	select {
	case <-gone:
		return
	case <-timeout.C:
	case <-s.aborted:
	}
	s.sessions.end(cutting)
	<-gone // bounded: once cut, a session only sends its last error
}

// CheckChannelBinding reports why clients will not be able to log in by SCRAM with channel binding, which libpq uses
// whenever it can: its proof covers the certificate of the connection, and a relay has two connections. It returns nil
// if that works or needs no TLS, or if PostgreSQL's certificate cannot be read now. If only clients that require
// channel binding fail, it logs that instead.
func (s *Server) CheckChannelBinding(ctx context.Context) error {
	return s.authentication.checkChannelBinding(ctx)
}

// Permit replaces the rules. New sessions follow the new ones at once. An open session ends at its next idle moment
// outside a transaction, FATAL 57P01, if its policy has become stricter. Physical replication, which has no such
// moment, ends at once. An error is a [*fence.InvalidError], and nothing has changed.
func (s *Server) Permit(rules []Rule) error {
	if err := CheckRules(rules, s.cfg.Database); err != nil {
		return err
	}
	rules = slices.Clone(rules)
	before := s.rules.Swap(&rules)
	ends := 0
	s.sessions.each(func(ss *session) {
		if ss.endIfStricter(rules) {
			ends++
		}
	})
	s.log.Info("the rules of the PostgreSQL port were replaced", "policies", differ(*before, rules), "sessions_ending", ends)
	return nil
}

// Sessions returns the open sessions, the oldest first.
func (s *Server) Sessions() []Session { return s.sessions.list() }

// Traffic returns the sum over all sessions.
func (s *Server) Traffic() Traffic { return s.sessions.traffic() }

// End ends an open session, FATAL 57P01, also inside a transaction. It returns false if the server has no session with
// this id.
func (s *Server) End(id string) (ended bool) {
	s.sessions.each(func(ss *session) { ended = ss.endIfNamed(id) || ended })
	return ended
}

// Superseded ends the sessions that carry an older grant of the resource than token. A caller that has just armed it
// calls this, so that locks of a stale holder are free. The next [Server.Look] finds a session that is still logging
// in.
func (s *Server) Superseded(resource string, token fence.Token) {
	s.fences.superseded(map[string]fence.Token{resource: token})
}

// Look asks the fence now for the grants that sessions carry, and ends superseded sessions: those of these resources,
// or of all if none is named.
func (s *Server) Look(ctx context.Context, only ...string) error { return s.fences.look(ctx, only...) }

// Moved ends the sessions that are on a server other than to, and lets no session open elsewhere from now on.
func (s *Server) Moved(to Upstream) {
	s.upstreams.home.Store(&to)
	s.sessions.each((*session).endIfElsewhere)
}
