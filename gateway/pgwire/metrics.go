package pgwire

import "time"

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

// Traffic holds the open sessions and the bytes of all sessions. It names no resources, because clients choose the
// names; [Server.Sessions] lists them.
type Traffic struct {
	Granted, Others      int   // sessions open now, with a grant and without one
	FromClient, ToClient int64 // bytes since the server was created
}

// Traffic returns the sum over all sessions.
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

// tally adds the session's bytes since the last call to the total. It returns the resource of its grant, and whether
// the session has opened. The caller holds s.mu.
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
