package pgwire

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// relay carries the session: one goroutine per direction, one write per read.
// It returns when both directions have ended.
func (s *session) relay(upstream net.Conn) {
	var fromClient sync.WaitGroup
	fromClient.Go(func() {
		defer s.recovered()
		s.clientToServer(upstream)
	})
	var err error
	func() {
		defer s.recovered()
		err = s.serverToClient(upstream)
	}()
	if s.isOpen() {
		s.srv.counters.active.Add(-1)
	}
	if err != nil {
		s.log().Warn("a PostgreSQL session ended early", "error", err)
	}
	_ = s.raw.Close()
	_ = upstream.Close()
	s.endLogin()
	fromClient.Wait()
}

// clientToServer ends when the client does, or when s.raw or upstream is closed.
func (s *session) clientToServer(upstream net.Conn) {
	from := newSource(s.client)
	defer from.free()
	var stream clientStream
	b, err := s.clientLogin(upstream, from, &stream)
	for ; ; b, err = from.read() {
		if len(b) > 0 {
			stream.scan(b)
			if passed, werr := s.passOn(upstream, b, &stream); !passed || werr != nil {
				return // or PostgreSQL has gone; the other direction still reads its last messages
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			s.hangsUp()
			_ = closeWrite(upstream) // as the client did: PostgreSQL ends the session after its answer
			return
		case isTimeout(err):
			if s.deadlinePassed() {
				continue
			}
			return // the other direction has the same deadline, and ends the session
		default:
			_ = upstream.Close() // the client is lost: its transaction rolls back
			return
		}
	}
}

// passOn writes what the client has sent. It returns false if the session has been ended.
func (s *session) passOn(upstream net.Conn, b []byte, stream *clientStream) (passed bool, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if !s.forwarding(stream) {
		return false, nil
	}
	_, err = upstream.Write(b)
	s.toServerBusy.Store(false)
	return true, err
}

// hangsUp notes that the client will send no more. Once no answer is due, that ends the session; until then the client
// may still read.
func (s *session) hangsUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hungUp = true
	s.left = s.left || s.phase != open
}

// forwarding notes, before the client's bytes are passed on, what they ask for and that a write is in progress. It
// returns false if the session has been ended, or given up before it opened; then the bytes must not be passed on.
func (s *session) forwarding(stream *clientStream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing == cutting || s.phase != open {
		return false
	}
	if s.asked.IsZero() {
		s.asked = time.Now()
	}
	s.fromClient += stream.bytes
	s.moves++
	rested := s.quiet != 0 || s.active.IsZero()
	if s.sent(stream); rested && s.quiet == 0 {
		s.active = time.Now()
	}
	s.left = s.left || stream.terminated
	if s.idle && s.closing == draining { // no answer will come after which the drain would be noticed
		_ = s.upstream.SetReadDeadline(time.Now())
	}
	s.toServerBusy.Store(true)
	return true
}

// arrived notes what PostgreSQL has sent, before it is passed on.
func (s *session) arrived(stream *serverStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.comes(stream)
}

// delivered notes what the client has received, and reports whether the session must end now.
func (s *session) delivered(stream *serverStream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.answered && !s.asked.IsZero() && s.toClient > 0 { // the first bytes are the login's ReadyForQuery
		s.answered = true
		s.srv.cfg.Metrics.Answered(time.Since(s.asked))
	}
	s.toClient += stream.bytes
	s.moves++
	s.came(stream)
	return s.endsNow(stream)
}

// woken handles the drain's wake-up: it reports whether the session must end now; otherwise reading continues.
func (s *session) woken(stream *serverStream, upstream net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endsNow(stream) {
		return true
	}
	deadline := time.Time{}
	if s.phase == loggingIn {
		deadline = s.loginEnds
	}
	_ = upstream.SetReadDeadline(deadline)
	return false
}

// endsNow reports whether the session must end. Once it returns true for an idle session, no more of the client's bytes
// are passed on. The caller holds s.mu.
func (s *session) endsNow(stream *serverStream) bool {
	if s.closing == draining && s.phase == open && s.idle && stream.boundary() {
		s.closing = cutting
	}
	return s.closing == cutting
}

// serverToClient does all writes to the client, so that a FATAL never falls into a message. It returns an error if
// PostgreSQL broke off.
func (s *session) serverToClient(upstream net.Conn) error {
	from := newSource(upstream)
	defer from.free()
	var stream serverStream
	if s.srv.cfg.Tell != nil {
		stream.errors.refused = s.tellRefusal
	}
	held, err := s.login(from, &stream)
	if err == nil {
		s.backend = stream.key
		held, err = s.admit(upstream, held)
	}
	if err == nil {
		switch {
		case s.opened():
			err = s.pump(from, held, &stream)
		case s.ending():
			err = errEnded
		default:
			err = os.ErrDeadlineExceeded
		}
	}
	return s.farewell(upstream, &stream, err)
}

// login relays the server's side of the login, with any method, up to the first ReadyForQuery. It returns the first
// bytes of that message, which it withholds.
func (s *session) login(from *source, stream *serverStream) (held []byte, err error) {
	for {
		b, err := from.read()
		at := stream.untilReady(b)
		if at > 0 {
			if stream.typ == typeError {
				s.refusal = loginRefusal{errorField(b[:at], 'C'), errorField(b[:at], 'F')}
			}
			if _, werr := s.client.Write(b[:at]); werr != nil {
				return nil, errClientGone
			}
		}
		switch {
		case at < len(b):
			return b[at:], nil
		case err == nil:
		case isTimeout(err):
			if s.ending() {
				return nil, errEnded
			}
			return nil, err
		default:
			return nil, err
		}
	}
}

// pump is the data path: no allocation, no copy, one write per read.
func (s *session) pump(from *source, held []byte, stream *serverStream) error {
	for {
		if s.outlived(stream, held) {
			return errEnded
		}
		if len(held) > 0 {
			stream.scan(held)
			if stream.ready > 0 || stream.copies || stream.fails {
				s.arrived(stream)
			}
			s.toClientBusy.Store(true)
			_, err := s.client.Write(held)
			s.toClientBusy.Store(false)
			if err != nil {
				return errClientGone
			}
			if s.delivered(stream) {
				return errEnded
			}
			if stream.ready > 0 && stream.boundary() {
				from.rests()
			}
		}
		var err error
		held, err = from.read()
		switch {
		case err == nil || len(held) > 0: // an error that came with bytes is returned again
		case isTimeout(err):
			if s.woken(stream, from.conn) {
				return errEnded
			}
		default:
			return err
		}
	}
}

var (
	errClientGone = errors.New("the client is gone")
	errEnded      = errors.New("ended by the gateway")
)

// farewell closes both sides as cleanly as the state of the streams allows. cause is why the pump ended. The error that
// it returns should be logged.
func (s *session) farewell(upstream net.Conn, stream *serverStream, cause error) error {
	s.explain() // also if the client has disconnected after PostgreSQL's refusal
	s.mu.Lock()
	left, idle, why, unanswered := s.left || s.hungUp && (s.pending == 0 || s.quiet != 0), s.idle, s.why, s.phase == open && (s.quiet == 0 || s.pending > 0)
	cut := s.closing == cutting
	s.mu.Unlock()
	switch {
	case errors.Is(cause, errClientGone):
		if cut {
			s.halt(upstream, unanswered)
		}
		if cut && why != nil && !left {
			s.tell(why, unanswered, false) // it was cut while it did not read
		}
		return nil
	case errors.Is(cause, errEnded):
		if idle && !unanswered { // otherwise a statement that was sent ahead may run
			_ = upstream.SetWriteDeadline(time.Now().Add(farewellTimeout))
			s.writing.Lock() // never inside a message of the client
			_, _ = upstream.Write(terminate)
			s.writing.Unlock()
		} else {
			s.halt(upstream, unanswered)
		}
		_ = upstream.Close() // others wait for its locks
		if left {            // a client that has disconnected needs no error
			return nil
		}
		s.tell(why, unanswered, stream.boundary())
		return nil
	case isTimeout(cause):
		if stream.boundary() {
			sendFatal(s.client, errLoginTooLong)
			linger(s.client, shortLinger)
		}
		return nil
	case left:
		return nil
	case stream.typ == typeError && stream.boundary(): // PostgreSQL has sent its own reason
		linger(s.client, shortLinger)
		return nil
	}
	if stream.boundary() {
		sendFatal(s.client, &fatalError{
			code: codeConnectionFailure, message: "the gateway has lost its connection to PostgreSQL at " + upstream.RemoteAddr().String(),
			hint: mayBeCommitted,
		})
		linger(s.client, shortLinger)
	}
	if errors.Is(cause, io.EOF) {
		return errors.New("PostgreSQL closed the connection")
	}
	return cause
}
