package pgwire

import "time"

// Metrics is told what happens. Its methods are called while sessions wait, so they
// are quick; they are safe for concurrent use.
type Metrics interface {
	// LoggedIn: a session opened, so long after its connection was accepted.
	LoggedIn(took time.Duration)
	// Answered: the first byte of the answer to a session's first statement came, so
	// long after the statement was passed on.
	Answered(took time.Duration)
	// Refused: a connection or session was refused, FATAL, before its first statement.
	Refused(sqlstate string)
	// Ended: the gateway ended an open session, FATAL.
	Ended(sqlstate string)
	// LeaseEnded: a session's lease was released, or lost, after so long.
	LeaseEnded(held time.Duration, lost bool)
}

// noMetrics is the [Metrics] of who wants none.
type noMetrics struct{}

var _ Metrics = noMetrics{}

func (noMetrics) LoggedIn(time.Duration) {}
func (noMetrics) Answered(time.Duration) {}
func (noMetrics) Refused(string)         {}
func (noMetrics) Ended(string)           {}

func (noMetrics) LeaseEnded(time.Duration, bool) {}

// Traffic is what is open and what passed, of all sessions. It names no resource: clients
// name those, and [Server.Sessions] tells them.
type Traffic struct {
	Granted, Others      int   // sessions open now, with a grant and without one
	FromClient, ToClient int64 // bytes since the server was made
}

// Traffic adds up what the sessions carried.
func (s *Server) Traffic() Traffic {
	s.mu.Lock()
	defer s.mu.Unlock()
	var granted, others int
	for ss := range s.sessions {
		switch resource, open := s.tally(ss); {
		case !open:
		case resource == "":
			others++
		default:
			granted++
		}
	}
	all := s.passed
	all.Granted, all.Others = granted, others
	return all
}

// tally adds what has passed in a session since the last time. It needs s.mu, and reports
// the resource of its grant, and whether the session has opened.
func (s *Server) tally(ss *session) (resource string, opened bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.phase != open {
		return "", false
	}
	s.passed.FromClient += ss.fromClient - ss.tallied.fromClient
	s.passed.ToClient += ss.toClient - ss.tallied.toClient
	ss.tallied.fromClient, ss.tallied.toClient = ss.fromClient, ss.toClient
	return ss.carries().resource, true
}
