package pgwire

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Server relays PostgreSQL sessions. It is safe for concurrent use.
type Server struct {
	cfg Config
	log *slog.Logger

	mu       sync.Mutex
	sessions map[*session]struct{}
	places   int                // sessions that are not surplus
	ofUser   map[string]int     // sessions that have logged in
	ofAddr   map[netip.Addr]int // connections that have not logged in
	passed   Traffic            // in bytes
	stopping bool

	rules   atomic.Pointer[[]Rule]
	aborted chan struct{} // closed by Abort
	abort   func()

	askedForCertificate atomic.Bool              // PostgreSQL has asked for a client certificate
	home                atomic.Pointer[Upstream] // the only server for sessions, set by Moved; nil: any
	unproved            sync.Once                // logs once that PostgreSQL did not authenticate a client

	counters struct {
		connections, sessions, refused, cancels atomic.Int64
		active, superseded                      atomic.Int64
	}
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
	s := &Server{
		cfg: cfg, log: cfg.Logger, sessions: make(map[*session]struct{}),
		ofUser: make(map[string]int), ofAddr: make(map[netip.Addr]int), aborted: make(chan struct{}),
	}
	s.rules.Store(&cfg.Rules)
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
	var sessions, watching sync.WaitGroup
	watched, stopWatching := context.WithCancel(context.WithoutCancel(ctx)) // also while sessions are drained
	defer watching.Wait()
	defer stopWatching()
	if s.cfg.Fences != nil {
		watching.Go(func() { s.watch(watched) })
	}
	watching.Go(func() { s.watchIdle(watched) })
	errs := make([]error, len(listeners))
	var listening sync.WaitGroup
	for i, ln := range listeners {
		listening.Go(func() {
			defer stopAccepting() // one failed listener stops all
			errs[i] = s.accept(accepting, ln, &sessions)
		})
	}
	listening.Wait()
	s.drain(&sessions)
	return errors.Join(errs...)
}

func (s *Server) accept(ctx context.Context, ln net.Listener, sessions *sync.WaitGroup) error {
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
		ss := newSession(s, conn)
		if !s.add(ss) {
			_ = conn.Close()
			continue
		}
		sessions.Go(func() {
			defer s.remove(ss)
			defer ss.recovered()
			ss.run(ctx)
		})
	}
}

// refusers is how many connections beyond the limit may finish their startup, to receive an error, or to have their
// cancel request passed on.
const refusers = 16

func (s *Server) add(ss *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	full := s.places >= s.cfg.MaxConnections || !s.countLogin(ss, s.loginAddrOf(ss.raw))
	if s.stopping || full && len(s.sessions)-s.places >= refusers {
		return false
	}
	ss.surplus = full
	if !full {
		s.places++
	}
	s.sessions[ss] = struct{}{}
	return true
}

func (s *Server) remove(ss *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, ss)
	s.uncountLogin(ss)
	if !ss.surplus {
		s.places--
	}
}

// each calls f for the current sessions.
func (s *Server) each(f func(*session)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ss := range s.sessions {
		f(ss)
	}
}

// Abort ends the sessions that a stopping [Server.Serve] waits for, now or later. It does not wait.
func (s *Server) Abort() { s.abort() }

// drain ends the sessions and returns when none is left.
func (s *Server) drain(sessions *sync.WaitGroup) {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	gone := make(chan struct{})
	go func() {
		sessions.Wait()
		close(gone)
	}()
	s.each((*session).drain)
	timeout := time.NewTimer(s.cfg.DrainTimeout)
	defer timeout.Stop()
	select {
	case <-gone:
		return
	case <-timeout.C:
	case <-s.aborted:
	}
	s.each((*session).cut)
	<-gone // bounded: after cut a session only sends its last error
}
