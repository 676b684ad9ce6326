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

	"github.com/fencegate/fencegate/fence"
)

// session is one client's connection and the one upstream that it gets.
type session struct {
	srv    *Server
	raw    net.Conn // as accepted: deadlines and closing go here
	client net.Conn // raw, or TLS over it; owned by run's goroutine until relaying starts

	loginEnds time.Time    // the one deadline of both directions until the session is open
	surplus   bool         // over the limit of connections: to be refused
	silent    bool         // and without a word, as others are being told
	stranger  netip.Addr   // it counts among the logins of this address; the server's mu guards it
	refusal   loginRefusal // by which PostgreSQL refused the login; belongs to the goroutine that reads PostgreSQL

	id       string
	proxied  netip.AddrPort // where the client is, as a proxy says
	began    time.Time
	who      startup         // once the startup packet is read
	way      Upstream        // to the server that it has; set before it is relayed
	backend  []byte          // its process there, and the key to cancel what that runs; once it has logged in
	seal     fence.Seal      // of the lease that it asks for
	held     *heldLease      // nil: none
	reserved bool            // counted among its user's sessions
	opening  context.Context // ends when the session opens, or is given up before
	endLogin context.CancelFunc

	proved                     atomic.Bool // the client was asked who it is, and has answered
	toClientBusy, toServerBusy atomic.Bool // a write is under way
	writing                    sync.Mutex  // of what goes to PostgreSQL once the session is open; taken before mu

	mu       sync.Mutex // guards what follows; held for a few loads and stores at a time
	upstream net.Conn
	phase    phase
	answers
	left    bool // the client has taken leave
	hungUp  bool // the client will send no more
	expired bool // the client's direction ran into the login's deadline
	closing closing
	claims  []claim     // what the startup options carried
	why     *fatalError // why it ends; nil: the gateway stops
	policy  Policy      // by the rules of its login
	judged  bool        // there is a policy
	patient bool        // it waits for its lease: the login's deadline is over
	moves   uint64      // how often bytes passed, in either direction

	fromClient, toClient int64 // bytes since it opened
	tallied              struct{ fromClient, toClient int64 }
	movesSeen            uint64    // when idleness was last looked at
	still                time.Time // since when it has not changed
	asked                time.Time // when the first statement was passed on
	active               time.Time // when the statement that runs was passed on
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

// surplusTimeout is the patience with connections that will be refused.
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
	defer s.over()
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
		if err := s.srv.cancel(ctx, opening); err != nil {
			s.srv.log.Warn("failed to pass on a cancel request", "client", s.from(), "error", err)
		}
		return // PostgreSQL's answer to a cancel request is the end of the connection
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

// log is for what happens to the session: never SQL, and no startup option.
func (s *session) log() *slog.Logger {
	return s.srv.log.With("session", s.id, "client", s.from(), "user", s.who.user, "database", s.who.database)
}

// recovered, deferred, keeps a defect that shows in one session from ending all
// the others: that session ends.
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

// negotiate answers what may come before the startup packet, and returns that
// one, or a cancel request.
func (s *session) negotiate(ctx context.Context) (packet, error) {
	for secured, gss := false, false; ; {
		var first [1]byte
		if _, err := io.ReadFull(s.client, first[:]); err != nil {
			return nil, err
		}
		s.begins()
		if first[0] == tlsHandshake && !secured && s.srv.cfg.TLS != nil {
			// A client that does not ask first (sslnegotiation=direct).
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

// begins gives a client that has said something the time of a login.
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

// loggingIn notes the upstream. It returns why the session is to end already; nil: it is not.
func (s *session) loggingIn(upstream net.Conn) *fatalError {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.upstream, s.phase, s.claims = upstream, loggingIn, s.who.claims
	_ = upstream.SetReadDeadline(s.loginEnds)
	s.pending = 1 // the startup packet is answered by a ReadyForQuery too
	if s.closing == notClosing {
		return nil
	}
	return cmp.Or(s.why, errShuttingDown)
}

// opened marks the end of the login: from now on only the peers limit time. It
// is false where the client's direction has run out of time before, and where the
// gateway ends the session: nothing has been asked yet.
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

// deadlinePassed notes that the deadline has ended a read of the client, and
// reports whether to read on: it was the login's, and the login succeeded just
// then.
func (s *session) deadlinePassed() (readOn bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expired = s.phase != open && !s.patient
	return !s.expired && s.closing == notClosing
}

// ending reports whether the gateway ends the session.
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

// inside reports whether a transaction is open, or a statement runs.
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

// endLocked needs s.mu.
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
		// A client that reads gets the answer that is on its way, and the reason behind it. One that does not read is given up.
		_ = s.raw.SetWriteDeadline(time.Now().Add(writeGrace))
		fallthrough
	default:
		if s.upstream != nil {
			_ = s.upstream.SetReadDeadline(time.Now()) // wakes the goroutine that reads PostgreSQL, which decides
		}
	}
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// cutLocked ends the session now and tells its client why. It needs s.mu.
func (s *session) cutLocked(why *fatalError) {
	if s.closing < cutting {
		s.why = why
		s.endLocked(cutting)
	}
}

// tell ends a session with a word to its client, unless the stream stands inside
// of a message. nil: the gateway stops. Where something of the client is unanswered, that
// may be a COMMIT: PostgreSQL goes on with it.
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
