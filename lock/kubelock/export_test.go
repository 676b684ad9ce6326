package kubelock

import (
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/clock/clocktest"
)

// WithClock gives the candidate a clock.
func (c *Config) WithClock() *clocktest.Clock {
	k := clocktest.New()
	c.clock = k.Clock
	return k
}

// Deadline returns when a Lock's term ends unless it renews the Lease.
func Deadline(l *Lock) clock.Instant {
	l.term.mu.Lock()
	defer l.term.mu.Unlock()
	return l.term.deadline
}

// Lose ends a Lock's term, as the first step of a release.
func Lose(l *Lock) { _ = l.term.lose(errReleased) }
