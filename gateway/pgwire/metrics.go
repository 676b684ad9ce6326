package pgwire

import (
	"sync/atomic"
	"time"
)

// Metrics receives measurements. Its methods are called while sessions wait, so they must be fast. They are safe for
// concurrent use.
type Metrics interface {
	// LoggedIn reports that a session opened; took is the time since its connection was accepted.
	LoggedIn(took time.Duration)
	// Answered reports the first byte of the answer to a session's first statement; took is the time since the
	// statement was passed on.
	Answered(took time.Duration)
	// Refused reports that a connection or session was refused, FATAL, before its first statement.
	Refused(sqlstate string)
	// Ended reports that the gateway ended an open session, FATAL.
	Ended(sqlstate string)
}

// noMetrics is a [Metrics] that discards everything.
type noMetrics struct{}

var _ Metrics = noMetrics{}

func (noMetrics) LoggedIn(time.Duration) {}
func (noMetrics) Answered(time.Duration) {}
func (noMetrics) Refused(string)         {}
func (noMetrics) Ended(string)           {}

// counters count for [Server.Stats], and pass measurements on.
type counters struct {
	Metrics

	connections, sessions, refused, cancels atomic.Int64
	active, superseded                      atomic.Int64
}

// refuse counts a refusal.
func (c *counters) refuse(why *fatalError) {
	c.refused.Add(1)
	c.Refused(why.code)
}

// Traffic holds the open sessions and the bytes of all sessions. It names no resources, because clients choose the
// names; [Server.Sessions] lists them.
type Traffic struct {
	Granted, Others      int   // sessions open now, with a grant and without one
	FromClient, ToClient int64 // bytes since the server was created
}
