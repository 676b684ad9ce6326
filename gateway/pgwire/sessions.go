package pgwire

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Session is an open session, for people. It holds no secret.
type Session struct {
	ID             string
	Client         string // address
	User, Database string
	PID            uint32        // of its backend, as reported by PostgreSQL or a pooler; 0: not known
	Application    string        // application_name of its startup packet
	Resource       string        // of the grant in the startup options; "": none, or several
	Token          fence.Token   // 0: not known
	State          string        // "active", "idle" or "idle in transaction"
	Since          time.Time     // when the connection was accepted
	StatementAge   time.Duration // how long the statement has been running; 0: none is
	FromClient     int64         // bytes since it opened
	ToClient       int64
}

// Sessions returns the open sessions, the oldest first.
func (s *Server) Sessions() []Session {
	var all []Session
	s.each(func(ss *session) {
		if one, ok := ss.describe(); ok {
			all = append(all, one)
		}
	})
	slices.SortFunc(all, func(a, b Session) int { return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.ID, b.ID)) })
	return all
}

func (s *session) describe() (Session, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != open || s.closing == cutting {
		return Session{}, false
	}
	var pid uint32
	if len(s.backend) >= keyPidBytes {
		pid = binary.BigEndian.Uint32(s.backend)
	}
	var age time.Duration
	if s.quiet == 0 && !s.active.IsZero() {
		age = max(time.Since(s.active), time.Nanosecond)
	}
	states := map[byte]string{'I': "idle", 'T': "idle in transaction", 'E': "idle in transaction"}
	return Session{
		ID: s.id, Client: s.from(), User: s.who.user, Database: s.who.database, PID: pid, Application: truncated(s.who.application), StatementAge: age,
		Resource: s.carries().resource, Token: s.carries().token,
		State: cmp.Or(states[s.quiet], "active"), Since: s.began, FromClient: s.fromClient, ToClient: s.toClient,
	}, true
}

// from returns the client's address; Unix sockets have none.
func (s *session) from() string {
	addr := s.raw.RemoteAddr()
	switch {
	case s.proxied.IsValid():
		return s.proxied.String()
	case addr.Network() != "unix":
		return addr.String()
	}
	return "unix socket"
}

// carries returns the only grant of the connection; none if there are several. The caller holds s.mu.
func (s *session) carries() claim {
	if len(s.claims) == 1 {
		return s.claims[0]
	}
	return claim{}
}

// errEndedByOperator is the error for a session that [Server.End] ends.
var errEndedByOperator = &fatalError{
	code: codeAdminShutdown, message: "terminating connection due to administrator command at the gateway",
	hint: "An open transaction is rolled back.",
}

// End ends an open session, FATAL 57P01, also inside a transaction. It returns false if the server has no session with
// this id.
func (s *Server) End(id string) (ended bool) {
	s.each(func(ss *session) {
		ss.mu.Lock()
		defer ss.mu.Unlock()
		if ss.id == id && ss.phase == open && ss.closing != cutting {
			ss.cutLocked(errEndedByOperator)
			ended = true
		}
	})
	return ended
}
