package pglock

import (
	"context"
	"errors"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

const (
	// lookEvery is how often a waiter polls, as notifications may be lost.
	lookEvery = time.Second
	// keepPlace is how long a place in the queue is kept for a process that does not poll.
	keepPlace = 5 * time.Second
	// leaveTimeout bounds leaving the queue.
	leaveTimeout = 2 * time.Second
	// shortest is the least pause between two polls.
	shortest = 2 * time.Millisecond
)

// Wait takes the lease of a resource when it is the process's turn. It waits while another holds it, and while PostgreSQL
// restarts.
func (s *store) Wait(ctx context.Context, r leasing.Request, w *leases.Waiter) (leases.Taken, error) {
	how := way{behind: true}
	defer func() { s.leave(r.Resource, how) }()
	for {
		taken, err := s.acquire(ctx, r, how)
		if err == nil {
			how.waiter = "" // the lease's transaction took it out of the queue
			return taken, nil
		}
		held, isHeld := errors.AsType[*leasing.HeldError](err)
		if ctx.Err() != nil || !isHeld && !mayPass(err) {
			return leases.Taken{}, err
		}
		w.Waits(err)
		if how.waiter == "" && isHeld { // join the queue at once, after starting to listen
			s.listen(ctx)
			how.waiter = s.id
			continue
		}
		pause := lookEvery/2 + mathrand.N(lookEvery/2)
		if isHeld && held.RetryAfter > 0 {
			pause = min(pause, held.RetryAfter+shortest)
		}
		if err := w.Pause(ctx, pause); err != nil {
			return leases.Taken{}, err
		}
	}
}

// leave leaves the queue.
func (s *store) leave(resource string, how way) {
	if how.waiter == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	err := s.on(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sqlLeave, mode(conn), resource, how.waiter)
		return err
	})
	if err != nil {
		s.cfg.Logger.Debug("failed to leave the queue; the place expires by itself", "resource", resource, "error", err)
	}
}

// listener receives the notifications for this process, from the first wait on.
type listener struct {
	once  sync.Once
	ready chan struct{} // closed when it has begun to listen
}

// listen returns when the process receives its notifications. If that takes too long it returns without them.
func (s *store) listen(ctx context.Context) {
	s.notices.once.Do(func() {
		s.notices.ready = make(chan struct{})
		s.env.Life.InBackground(func(context.Context) { s.receive() })
	})
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	select {
	case <-s.notices.ready:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// receive handles notifications until the Source is closed.
func (s *store) receive() {
	begun := sync.OnceFunc(func() { close(s.notices.ready) })
	for s.env.Life.Calls.Err() == nil {
		if err := s.hearOn(begun); err != nil && s.env.Life.Calls.Err() == nil {
			s.cfg.Logger.Debug("failed to listen for releases; waiting calls poll instead", "error", err)
		}
		select {
		case <-s.env.Life.Calls.Done():
		case <-time.After(lookEvery):
		}
	}
}

func (s *store) hearOn(begun func()) error {
	config := s.cfg.Pool.Config() // a copy
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(s.env.Life.Calls, config.ConnConfig); err != nil {
			return err
		}
	}
	conn, err := pgx.ConnectConfig(s.env.Life.Calls, config.ConnConfig)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	if _, err := conn.Exec(s.env.Life.Calls, "LISTEN "+pgx.Identifier{"fencegate_lease_" + s.id}.Sanitize()); err != nil {
		return err
	}
	begun()
	s.env.Lines.CallAll() // notifications sent before this were missed
	for {
		n, err := conn.WaitForNotification(s.env.Life.Calls)
		if err != nil {
			return err
		}
		s.hear(n.Payload)
	}
}

// hear wakes the first waiter for a resource; for "", the first of each.
func (s *store) hear(resource string) {
	if resource == "" {
		s.env.Lines.CallAll()
		return
	}
	s.env.Lines.Call(resource)
}
