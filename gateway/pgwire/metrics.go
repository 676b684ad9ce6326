package pgwire

import "time"

// Metrics hears what happens. Its methods are called while sessions wait, so they
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

// deaf hears nothing.
type deaf struct{}

var _ Metrics = deaf{}

func (deaf) LoggedIn(time.Duration) {}
func (deaf) Answered(time.Duration) {}
func (deaf) Refused(string)         {}
func (deaf) Ended(string)           {}

func (deaf) LeaseEnded(time.Duration, bool) {}

// Traffic is what passed in sessions that carry a grant of one resource.
type Traffic struct {
	Resource             string // "": no grant; "*": those beyond the first maxTallies resources
	Sessions             int    // open now
	FromClient, ToClient int64  // bytes since the server was made
}

// maxTallies bounds how many resources are told apart: clients name them.
const maxTallies = 100

// Traffic is reported by resource.
func (s *Server) Traffic() []Traffic {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tallies {
		t.Sessions = 0
	}
	for ss := range s.sessions {
		if t := s.tally(ss); t != nil {
			t.Sessions++
		}
	}
	all := make([]Traffic, 0, len(s.tallies))
	for _, t := range s.tallies {
		all = append(all, *t)
	}
	return all
}

// tally adds what has passed in a session since the last time. It needs s.mu, and
// is nil for a session that never opened.
func (s *Server) tally(ss *session) *Traffic {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.phase != open {
		return nil
	}
	resource := ss.carries().resource
	t := s.tallies[resource]
	if t == nil {
		if len(s.tallies) >= maxTallies {
			resource = "*"
		}
		if t = s.tallies[resource]; t == nil {
			t = &Traffic{Resource: resource}
			s.tallies[resource] = t
		}
	}
	t.FromClient += ss.fromClient - ss.tallied.fromClient
	t.ToClient += ss.toClient - ss.tallied.toClient
	ss.tallied.fromClient, ss.tallied.toClient = ss.fromClient, ss.toClient
	return t
}
