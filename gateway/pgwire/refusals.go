package pgwire

import (
	"bytes"
	"strings"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/wire"
)

// maxErrorBytes bounds the buffer for an ErrorResponse that spans reads.
const maxErrorBytes = 16 << 10

// errorWatch finds the fence's refusals among the errors that pass. It buffers only an ErrorResponse that continues in
// the next read.
type errorWatch struct {
	refused func(body []byte) // receives the body of a refusal; nil: refusals are not watched
	cut     []byte
}

// begins takes the beginning of an ErrorResponse's body of size bytes.
func (w *errorWatch) begins(b []byte, size uint32) {
	switch {
	case w.refused == nil:
	case uint32(len(b)) >= size:
		w.ends(b[:size])
	default:
		w.cut = append(w.cut[:0], b[:min(len(b), maxErrorBytes)]...)
	}
}

// goesOn takes more of a split body, of which left bytes remain.
func (w *errorWatch) goesOn(b []byte, left uint32) {
	if w.refused == nil {
		return
	}
	n := min(len(b), int(left))
	w.cut = append(w.cut, b[:min(n, maxErrorBytes-len(w.cut))]...)
	if n == int(left) {
		w.ends(w.cut)
	}
}

func (w *errorWatch) ends(body []byte) {
	if bytes.HasPrefix(responseField(body, 'C'), []byte("ZF0")) {
		w.refused(body)
	}
}

// responseField returns a field of an ErrorResponse's body; nil if it has none.
func responseField(body []byte, field byte) []byte {
	for len(body) > 0 && body[0] != 0 {
		value, rest, whole := bytes.Cut(body[1:], []byte{0})
		if body[0] == field && whole {
			return value
		}
		body = rest
	}
	return nil
}

// tellRefusal records a write that the fence refused as an event.
func (s *session) tellRefusal(body []byte) {
	s.tellOf(string(responseField(body, 'C')), string(responseField(body, 'D')))
}

func (s *session) tellOf(sqlState, detail string) {
	if s.srv.cfg.Tell == nil || !strings.HasPrefix(sqlState, "ZF0") {
		return
	}
	if e, ok := activity.RefusedByPostgres(sqlState, detail, s.event("")); ok {
		if e.Presented == 0 {
			e.Presented = s.tokenOf(e.Resource)
		}
		s.srv.cfg.Tell(e)
	}
}

// tokenOf returns the token of the session's grant for a resource; 0: not known. A refusal of a grant that is presented
// by its seal alone contains no token.
func (s *session) tokenOf(resource string) fence.Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.claims {
		if c.resource == resource {
			return c.token
		}
	}
	return 0
}

// tellEnd records that the gateway ends the session. If the session is in a statement or a transaction, which the fence
// would refuse, the end counts as a refusal.
func (s *session) tellEnd(why *fatalError, busy bool) {
	if s.srv.cfg.Tell == nil {
		return
	}
	e, refused := activity.RefusedByPostgres(why.code, why.detail, s.event(""))
	if !refused {
		e = activity.Cleaned(s.event(""))
	}
	if !refused || !busy {
		e.Kind, e.Code = wire.EventEnded, why.code
	}
	s.srv.cfg.Tell(e)
}

// event returns an event about this session.
func (s *session) event(kind string) activity.Event {
	return activity.Event{Kind: kind, Surface: wire.SurfacePG, Login: s.who.user, Client: s.from(), App: s.who.application}
}
