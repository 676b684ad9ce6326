package zklock

import (
	"context"

	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/clock/clocktest"
	"github.com/fencegate/fencegate/fence/leasing"
)

// WithClock gives a configuration's source a clock.
func (c *Config) WithClock() *clocktest.Clock {
	k := clocktest.New()
	c.clock = k.Clock
	return k
}

// Vanish stops the source like a killed process: nothing more is sent to ZooKeeper.
func Vanish(s *Source) {
	s.store.mu.Lock()
	for _, h := range s.store.holds {
		h.timer.Stop()
	}
	s.store.mu.Unlock()
	s.store.session.close(true)
	_ = s.Source.Close()
}

// Server is the address of the server that the source's session is connected to.
func Server(s *Source) string { return s.store.session.conn.Server() }

// Create looks at a resource, and takes it after between has run.
func Create(ctx context.Context, s *Source, r leasing.Request, between func()) error {
	at, err := s.store.look(ctx, r.Resource)
	if err == nil {
		between()
		_, err = s.store.create(ctx, r, at, nil)
	}
	return err
}

// Ends returns when the node of a lease that this process holds is deleted.
func Ends(s *Source, owner string) clock.Instant {
	h := s.store.own(owner)
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	return h.deadline
}

// Extended handles the answer to an extension.
func Extended(s *Source, owner string, deadline clock.Instant) bool {
	return s.store.move(s.store.own(owner), deadline)
}

// Expire ends a lease that this process holds, as its timer does.
func Expire(s *Source, owner string) {
	h := s.store.own(owner)
	s.store.mu.Lock()
	h.deadline = clock.Instant{}
	s.store.mu.Unlock()
	s.store.expire(h)
}
