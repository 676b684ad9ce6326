package pgwire

import "net"

// clientLogin passes on what belongs to the login and nothing else, until the
// session is open: a statement that a client sends ahead waits. It returns what
// the client sent then, as a read would.
func (s *session) clientLogin(upstream net.Conn, from *source, stream *clientStream) ([]byte, error) {
	for {
		b, err := from.read()
		at := stream.untilStatement(b)
		if stream.terminated {
			s.leaves()
		}
		if at > 0 {
			if _, werr := upstream.Write(b[:at]); werr != nil {
				return nil, nil //nolint:nilerr // the next write fails as well
			}
		}
		switch {
		case at < len(b):
			<-s.opening.Done()
			return b[at:], err
		case err == nil, isTimeout(err) && s.deadlinePassed():
		default:
			s.endLogin()
			return nil, err
		}
	}
}

func (s *session) leaves() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = true
}

// untilStatement scans b up to the first message that is no part of a login,
// and returns how many bytes come before it: len(b) where there is none.
func (c *clientStream) untilStatement(b []byte) int {
	rest := b
	for {
		if !c.lost && c.have == 0 && uint32(len(rest)) > c.skip && !ofLogin(rest[c.skip]) {
			at := len(b) - len(rest) + int(c.skip)
			c.skip = 0
			return at
		}
		var typ byte
		if typ, rest = c.next(rest); typ == 0 {
			return len(b)
		}
		c.terminated = c.terminated || typ == typeTerminate
	}
}

func ofLogin(typ byte) bool { return typ == typePassword || typ == typeTerminate }

// admit decides, once the client has logged in and waits for its first
// ReadyForQuery, whether it gets it. held is that message, or its beginning.
func (s *session) admit(_ net.Conn, held []byte) ([]byte, error) { return held, nil }

// over frees what the session had, when both directions have ended.
func (s *session) over() {}
