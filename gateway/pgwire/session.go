package pgwire

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// session is a client's connection and its one upstream.
type session struct {
	srv    *Server
	raw    net.Conn // as accepted; deadlines and closing use it
	client net.Conn // raw, or TLS over it; owned by run's goroutine until relaying starts

	loginEnds time.Time    // the deadline of both directions until the session is open
	surplus   bool         // over the limit of connections; will be refused
	silent    bool         // and closed without an error, because enough others get one
	loginAddr netip.Addr   // counted among the logins of this address; the server's mu guards it
	refusal   loginRefusal // with which PostgreSQL refused the login; used by the goroutine that reads PostgreSQL

	id       string
	proxied  netip.AddrPort // the client's address, from a proxy
	began    time.Time
	who      startup         // once the startup packet is read
	way      Upstream        // to its server; set before relaying
	backend  []byte          // its process id and cancel key; set after the login
	reserved bool            // counted among its user's sessions
	opening  context.Context // ends when the session opens, or is given up before
	endLogin context.CancelFunc

	proved                     atomic.Bool // the client has answered an authentication request
	toClientBusy, toServerBusy atomic.Bool // a write is in progress
	writing                    sync.Mutex  // of writes to PostgreSQL once the session is open; locked before mu

	mu       sync.Mutex // guards the fields below; held briefly
	upstream net.Conn
	phase    phase
	answers
	left    bool // the client has sent Terminate, or disconnected
	hungUp  bool // the client will send no more
	expired bool // the client's direction exceeded the login's deadline
	closing closing
	claims  []claim     // from the startup options
	why     *fatalError // why it ends; nil: the gateway stops
	policy  Policy      // from the rules at its login
	judged  bool        // policy is set
	moves   uint64      // how often bytes passed in either direction

	fromClient, toClient int64 // bytes since it opened
	tallied              struct{ fromClient, toClient int64 }
	movesSeen            uint64    // moves at the last idle check
	still                time.Time // since when moves has not changed
	asked                time.Time // when the first statement was passed on
	active               time.Time // when the running statement was passed on
	answered             bool
}

type phase int

const (
	negotiating phase = iota // up to the StartupMessage
	loggingIn                // up to the first ReadyForQuery
	open
)

type closing int

const (
	notClosing closing = iota
	draining           // ends at the next idle moment
	cutting            // ends now
)

// surplusTimeout is the time for connections that will be refused.
const surplusTimeout = 2 * time.Second

func newSession(srv *Server, conn net.Conn) *session {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: srv.cfg.KeepAlive})
	}
	s := &session{srv: srv, raw: conn, client: conn, id: rand.Text(), began: time.Now()}
	s.loginEnds = s.began.Add(srv.cfg.LoginTimeout)
	s.opening, s.endLogin = context.WithCancel(context.Background())
	return s
}

// run serves the connection to its end.
func (s *session) run(ctx context.Context) {
	defer func() { _ = s.raw.Close() }()
	defer s.srv.forget(s)
	defer s.endLogin()
	if s.surplus {
		s.loginEnds = time.Now().Add(min(surplusTimeout, s.srv.cfg.LoginTimeout))
	}
	_ = s.raw.SetDeadline(s.began.Add(min(s.srv.cfg.FirstByteTimeout, s.loginEnds.Sub(s.began))))
	if err := s.introduced(); err != nil {
		s.refuse(err)
		return
	}
	opening, err := s.negotiate(ctx)
	if err != nil {
		s.refuse(err)
		return
	}
	if opening.code() == codeCancel {
		// PostgreSQL's answer to a cancel request is the end of the connection.
		if err := s.srv.cancel(ctx, opening, func() { _ = s.raw.Close() }); err != nil {
			s.srv.log.Warn("failed to pass on a cancel request", "client", s.from(), "error", err)
		}
		return
	}
	who, err := s.checkStartup(opening)
	if err == nil && s.surplus {
		err = errTooMany
	}
	if err != nil {
		s.refuse(err)
		return
	}
	s.who = who
	if opening, err = s.dressed(opening); err != nil {
		s.refuse(err)
		return
	}
	upstream, way, err := s.srv.dial(ctx)
	if err != nil {
		s.refuse(err)
		return
	}
	defer func() { _ = upstream.Close() }()
	s.way = way
	if why := s.loggingIn(upstream); why != nil {
		s.refuse(why)
		return
	}
	if _, err := upstream.Write(opening); err != nil {
		s.refuse(s.srv.unreachable(s.srv.cfg.upstreams(), err))
		return
	}
	s.relay(upstream)
}

// log returns the logger for the session. Never log SQL or a startup option.
func (s *session) log() *slog.Logger {
	return s.srv.log.With("session", s.id, "client", s.from(), "user", s.who.user, "database", s.who.database)
}

// recovered, when deferred, confines a panic to its session, which it ends.
func (s *session) recovered() {
	if cause := recover(); cause != nil {
		s.srv.log.Error("a PostgreSQL session panicked and is ended", "client", s.from(), "panic", cause, "stack", string(debug.Stack()))
		_ = s.raw.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.upstream != nil {
			_ = s.upstream.Close()
		}
	}
}

// negotiate answers what may precede the startup packet, and returns that packet or a cancel request.
func (s *session) negotiate(ctx context.Context) (packet, error) {
	for secured, gss := false, false; ; {
		var first [1]byte
		if _, err := io.ReadFull(s.client, first[:]); err != nil {
			return nil, err
		}
		s.begins()
		if first[0] == tlsHandshake && !secured && s.srv.cfg.TLS != nil {
			// A client with sslnegotiation=direct does not ask first.
			if err := s.startTLS(ctx, &prefixConn{Conn: s.raw, prefix: first[:]}, true); err != nil {
				return nil, err
			}
			secured = true
			continue
		}
		p, err := readPacket(s.client, first[0])
		if err != nil {
			return nil, err
		}
		switch code := p.code(); {
		case code == codeSSL && len(p) == minPacketBytes && !secured:
			if s.srv.cfg.TLS == nil {
				_, err = s.client.Write([]byte{'N'})
			} else if _, err = s.client.Write([]byte{'S'}); err == nil {
				err = s.startTLS(ctx, s.raw, false)
			}
			secured = true
		case code == codeGSSEnc && len(p) == minPacketBytes && !gss:
			_, err = s.client.Write([]byte{'N'})
			gss = true
		default:
			return p, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// begins extends the deadline to that of a login once the client has sent something.
func (s *session) begins() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing == notClosing {
		_ = s.raw.SetDeadline(s.loginEnds)
	}
}

func (s *session) checkStartup(opening packet) (startup, error) {
	who, err := parseStartup(opening)
	if err == nil {
		err = s.checkCertificate()
	}
	if err != nil {
		return who, err
	}
	if want := s.srv.cfg.Database; want != "" && who.database != want && !who.physical {
		return who, &fatalError{
			code:    codeUnknownDatabase,
			message: "database " + quote(who.database) + " is not served here",
			hint:    "A gateway serves one database; the gateway's own settings name it.",
		}
	}
	return who, nil
}

// refuse ends a connection that has not become a session.
func (s *session) refuse(err error) {
	refusal, ok := asFatalError(err)
	log := s.srv.log.With("client", s.from())
	switch {
	case !ok && isTimeout(err):
		log.Debug("a client did not finish its login in time", "error", err)
		return
	case !ok && isHandshake(err):
		log.Warn("a TLS handshake failed", "error", err)
		return
	case errors.Is(err, errNoProxyHeader):
		log.Warn("a connection from a network of proxies was refused", "error", err)
		return
	case !ok:
		log.Debug("a client left before its login", "error", err)
		return
	}
	s.srv.refused(refusal)
	log.Warn("a connection was refused", "sqlstate", refusal.code, "error", refusal)
	sendFatal(s.client, refusal)
	linger(s.client, longLinger)
}

// loggingIn records the upstream. It returns why the session must end already; nil: it need not.
func (s *session) loggingIn(upstream net.Conn) *fatalError {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.upstream, s.phase, s.claims = upstream, loggingIn, s.who.claims
	_ = upstream.SetReadDeadline(s.loginEnds)
	s.pending = 1 // a ReadyForQuery also answers the startup packet
	if s.closing == notClosing {
		return nil
	}
	return cmp.Or(s.why, errShuttingDown)
}

// opened ends the login: from now on there is no deadline. It returns false if the client's direction exceeded its
// deadline before, or if the gateway ends the session. No statement has been sent yet.
func (s *session) opened() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if home := s.srv.home.Load(); home != nil && s.way.elsewhere(*home) {
		s.cutLocked(errMoved)
	}
	if s.expired || s.closing != notClosing {
		return false
	}
	s.phase = open
	s.endLogin()
	_ = s.raw.SetDeadline(time.Time{})
	_ = s.upstream.SetReadDeadline(time.Time{})
	if !s.proved.Load() {
		s.srv.unproved.Do(func() { s.log().Warn(unproved) })
	}
	s.srv.counters.sessions.Add(1)
	s.srv.counters.active.Add(1)
	s.srv.cfg.Metrics.LoggedIn(time.Since(s.began))
	return true
}

// deadlinePassed notes that a deadline has ended a read of the client, and reports whether to continue reading: it was
// the login's, and the login has just succeeded.
func (s *session) deadlinePassed() (readOn bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expired = s.phase != open
	return !s.expired && s.closing == notClosing
}

// ending reports whether the gateway is ending the session.
func (s *session) ending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing != notClosing
}

func (s *session) isOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase == open
}

// inside reports whether a transaction is open, or a statement is running.
func (s *session) inside() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.idle
}

// drain asks the session to end at its next idle moment.
func (s *session) drain() { s.end(draining) }

// cut asks the session to end now, also inside a transaction.
func (s *session) cut() { s.end(cutting) }

func (s *session) end(how closing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked(how)
}

// endLocked is end. The caller holds s.mu.
func (s *session) endLocked(how closing) {
	if s.closing >= how {
		return
	}
	s.closing = how
	if s.phase != open {
		s.endLogin()
	}
	switch {
	case how == cutting, s.phase == negotiating:
		_ = s.raw.SetReadDeadline(time.Now()) // ends the goroutine that reads the client
		// A client that reads gets the answer in transit and then the reason. A client that does not read is given up.
		_ = s.raw.SetWriteDeadline(time.Now().Add(writeGrace))
		fallthrough
	default:
		if s.upstream != nil {
			_ = s.upstream.SetReadDeadline(time.Now()) // wakes the goroutine that reads PostgreSQL, which decides
		}
	}
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// cutLocked ends the session now with an error for its client. The caller holds s.mu.
func (s *session) cutLocked(why *fatalError) {
	if s.closing < cutting {
		s.why = why
		s.endLocked(cutting)
	}
}

// tell ends a session with an error for its client, unless the stream is inside a message. why nil: the gateway stops.
// If an answer is due, the open statement may be a COMMIT, which PostgreSQL may still complete.
func (s *session) tell(why *fatalError, unanswered, boundary bool) {
	if why != nil && s.isOpen() {
		s.srv.cfg.Metrics.Ended(why.code)
		s.tellEnd(why, unanswered || s.inside())
		s.log().Info("a PostgreSQL session was ended", "sqlstate", why.code, "error", why, "detail", why.detail)
	}
	why = cmp.Or(why, errStopping)
	if unanswered {
		why = why.advised(mayBeCommitted)
	}
	if boundary {
		sendFatal(s.client, why)
		linger(s.client, shortLinger)
	}
}
