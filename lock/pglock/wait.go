package pglock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence/leasing"
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

// Acquire takes the lease of a resource. It waits while another holds it, and while
// PostgreSQL restarts, until ctx ends. Callers of this Source are served in the
// order in which they asked. The first of them queues with those of other processes.
func (s *Source) Acquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	r, err := s.validate(r)
	if err != nil {
		return leasing.Lease{}, err
	}
	ctx, cancel, err := s.life.Open(ctx)
	if err != nil {
		return leasing.Lease{}, err
	}
	defer cancel()
	w := s.lines.enter(r.Resource)
	defer s.lines.leave(r.Resource, w)
	if err := w.await(ctx); err != nil {
		return leasing.Lease{}, ended(s.lines.why(r.Resource), err)
	}
	return s.first(ctx, r, w)
}

// first acquires for the first waiter of this process.
func (s *Source) first(ctx context.Context, r leasing.Request, w *waiter) (leasing.Lease, error) {
	how := way{behind: true}
	var why error
	for {
		lease, err := s.acquire(ctx, r, how)
		held, isHeld := isHeld(err)
		if err == nil {
			return lease, nil
		}
		if why != nil && ctx.Err() != nil { // ctx ended during the retry
			s.leave(r.Resource, how)
			return leasing.Lease{}, ended(why, context.Cause(ctx))
		}
		if !isHeld && !mayPass(err) {
			s.leave(r.Resource, how)
			return leasing.Lease{}, err
		}
		why = err
		s.lines.waits(r.Resource, why)
		if how.waiter == "" && isHeld { // join the queue at once, after starting to listen
			s.listen(ctx)
			how.waiter = s.id
			continue
		}
		pause := lookEvery/2 + rand.N(lookEvery/2)
		if isHeld && held.RetryAfter > 0 {
			pause = min(pause, held.RetryAfter+shortest)
		}
		if err := w.wait(ctx, pause); err != nil {
			s.leave(r.Resource, how)
			return leasing.Lease{}, ended(why, err)
		}
	}
}

// ended returns the error of a wait that failed.
func ended(why, err error) error {
	if errors.Is(err, leasing.ErrClosed) {
		return err // the holder no longer matters
	}
	if why == nil {
		return err
	}
	return fmt.Errorf("%w: %w", why, err)
}

// leave leaves the queue.
func (s *Source) leave(resource string, how way) {
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

// lines keeps this process's waiters for each resource in the order in which they came.
type lines struct {
	mu sync.Mutex
	of map[string]*line
}

type line struct {
	waiters []*waiter
	why     error // why the first waits; nil: it has not asked yet
}

type waiter struct {
	turn chan struct{} // closed when it is the first
	wake chan struct{} // holds a value when the resource may be free
}

func (q *lines) enter(resource string) *waiter {
	w := &waiter{turn: make(chan struct{}), wake: make(chan struct{}, 1)}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.of == nil {
		q.of = make(map[string]*line)
	}
	if q.of[resource] == nil {
		q.of[resource] = &line{}
		close(w.turn)
	}
	q.of[resource].waiters = append(q.of[resource].waiters, w)
	return w
}

func (q *lines) leave(resource string, w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.of[resource]
	at := slices.Index(l.waiters, w)
	l.waiters = slices.Delete(l.waiters, at, at+1)
	switch {
	case len(l.waiters) == 0:
		delete(q.of, resource)
	case at == 0:
		l.why = nil
		close(l.waiters[0].turn)
	}
}

// waits records why the first waits.
func (q *lines) waits(resource string, why error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.of[resource].why = why
}

// why returns why the first waits, if it has asked.
func (q *lines) why(resource string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if why := q.of[resource].why; why != nil {
		return why
	}
	return &leasing.HeldError{Resource: resource}
}

// call wakes the first waiter for a resource, because it may be free; for "", the first of each.
func (q *lines) call(resource string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for name, l := range q.of {
		if resource != "" && name != resource {
			continue
		}
		select {
		case l.waiters[0].wake <- struct{}{}:
		default:
		}
	}
}

// await blocks until it is the waiter's turn.
func (w *waiter) await(ctx context.Context) error {
	select {
	case <-w.turn:
		return nil
	default:
	}
	select {
	case <-w.turn:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// wait blocks until the waiter is woken, or the pause is over.
func (w *waiter) wait(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-w.wake:
		return nil
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// listener receives the notifications for this process, from the first wait on.
type listener struct {
	once  sync.Once
	ready chan struct{} // closed when it has begun to listen
}

// listen returns when the process receives its notifications. If that takes too long it returns without them.
func (s *Source) listen(ctx context.Context) {
	s.notices.once.Do(func() {
		s.notices.ready = make(chan struct{})
		s.life.InBackground(func(context.Context) { s.receive() })
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
func (s *Source) receive() {
	begun := sync.OnceFunc(func() { close(s.notices.ready) })
	for s.life.Calls.Err() == nil {
		if err := s.hearOn(begun); err != nil && s.life.Calls.Err() == nil {
			s.cfg.Logger.Debug("failed to listen for releases; waiting calls poll instead", "error", err)
		}
		select {
		case <-s.life.Calls.Done():
		case <-time.After(lookEvery):
		}
	}
}

func (s *Source) hearOn(begun func()) error {
	config := s.cfg.Pool.Config() // a copy
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(s.life.Calls, config.ConnConfig); err != nil {
			return err
		}
	}
	conn, err := pgx.ConnectConfig(s.life.Calls, config.ConnConfig)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	if _, err := conn.Exec(s.life.Calls, "LISTEN "+pgx.Identifier{"fencegate_lease_" + s.id}.Sanitize()); err != nil {
		return err
	}
	begun()
	s.lines.call("") // notifications sent before this were missed
	for {
		n, err := conn.WaitForNotification(s.life.Calls)
		if err != nil {
			return err
		}
		s.lines.call(n.Payload)
	}
}
