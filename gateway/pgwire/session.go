package pgwire

import (
	"cmp"
	"context"
	"errors"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// session is what the goroutines of a session's two directions and the server know together: how far it is, what has
// passed, and whether it must end.
type session struct {
	client    *client
	counters  *counters
	loginEnds time.Time       // the deadline of both directions until the session is open
	opening   context.Context // ends when the session opens, or is given up before
	endLogin  context.CancelFunc

	proved                     atomic.Bool // the client has answered an authentication request
	toClientBusy, toServerBusy atomic.Bool // a write is in progress

	mu       sync.Mutex // guards the fields below; held briefly
	upstream *backend
	phase    phase
	answers
	progress
	claims    claims // from the startup options
	left      bool   // the client has sent Terminate, or disconnected
	hungUp    bool   // the client will send no more
	expired   bool   // the client's direction exceeded the login's deadline
	closing   closing
	why       *fatalError // why it ends; nil: the gateway stops
	policy    Policy      // from the rules at its login
	hasPolicy bool        // policy is set
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

// writeGrace is the time for a write in progress to a client whose session is cut.
const writeGrace = 200 * time.Millisecond

// Why one direction of a session ends.
var (
	errClientGone = errors.New("the client is gone")
	errEnded      = errors.New("ended by the gateway")
)

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// Why the gateway ends an open session, besides the limits of idle ones and newer grants.
var (
	errStopping = &fatalError{
		code: codeAdminShutdown, message: "terminating connection due to shutdown of the gateway",
		hint: "Connect again: another gateway, or this one after its restart, will serve you.",
	}
	errMoved = &fatalError{
		code: codeAdminShutdown, message: "terminating connection: the gateway now uses another PostgreSQL server",
		hint: "Connect again, and check the outcome of the last transaction.",
	}
	errPolicies = &fatalError{
		code: codeAdminShutdown, message: "terminating connection: the gateway's policies have changed",
		hint: "Connect again: the new policies apply.",
	}
	errEndedByOperator = &fatalError{
		code: codeAdminShutdown, message: "terminating connection due to administrator command at the gateway",
		hint: "An open transaction is rolled back.",
	}
)

func newSession(client *client, counters *counters, loginEnds time.Time) *session {
	s := &session{client: client, counters: counters, loginEnds: loginEnds}
	s.opening, s.endLogin = context.WithCancel(context.Background())
	return s
}

// recoverPanic, when deferred, confines a panic to its session, which it ends.
func (s *session) recoverPanic() {
	if cause := recover(); cause != nil {
		s.client.logger.Error("a PostgreSQL session panicked and is ended", "client", s.client.address(), "panic", cause, "stack", string(debug.Stack()))
		_ = s.client.raw.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.upstream != nil {
			_ = s.upstream.conn.Close()
		}
	}
}

// extendDeadline extends the deadline to that of a login once the client has sent something.
func (s *session) extendDeadline() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing == notClosing {
		_ = s.client.raw.SetDeadline(s.loginEnds)
	}
}

// setPolicy sets the policy for the session's login. It reads the rules under the session's lock, so that a concurrent
// change of the rules is either seen here, or sees the policy.
func (s *session) setPolicy(rules *atomic.Pointer[[]Rule]) Policy {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policy, s.hasPolicy = policyFor(*rules.Load(), s.client.who), true
	return s.policy
}

// logIn records the upstream. It returns why the session must end already; nil: it need not.
func (s *session) logIn(upstream *backend) *fatalError {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.upstream, s.phase, s.claims = upstream, loggingIn, s.client.who.claims
	_ = upstream.conn.SetReadDeadline(s.loginEnds)
	s.pending = 1 // a ReadyForQuery also answers the startup packet
	if s.closing == notClosing {
		return nil
	}
	return cmp.Or(s.why, errShuttingDown)
}

// finishLogin opens the session: from now on there is no deadline. It returns false if the client's direction exceeded
// its deadline before, or if the gateway ends the session. No statement has been sent yet.
func (s *session) finishLogin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.upstream.isElsewhere() {
		s.cutLocked(errMoved)
	}
	if s.expired || s.closing != notClosing {
		return false
	}
	s.phase = open
	s.endLogin()
	_ = s.client.raw.SetDeadline(time.Time{})
	_ = s.upstream.conn.SetReadDeadline(time.Time{})
	return true
}

// isOpen reports whether the session has opened; it stays true to the end.
func (s *session) isOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase == open
}

// noteTimeout notes that a deadline has ended a read of the client, and reports whether to continue reading: it was
// the login's, and the login has just succeeded.
func (s *session) noteTimeout() (readOn bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expired = s.phase != open
	return !s.expired && s.closing == notClosing
}

// noteTerminate notes that the client has sent Terminate.
func (s *session) noteTerminate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = true
}

// noteHangUp notes that the client will send no more. Once no answer is due, that ends the session; until then the
// client may still read.
func (s *session) noteHangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hungUp = true
	s.left = s.left || s.phase != open
}

// startForward notes, before the client's bytes are passed on, what they ask for and that a write is in progress. It
// returns false if the session has been ended, or given up before it opened; then the bytes must not be passed on.
func (s *session) startForward(stream *clientStream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing == cutting || s.phase != open {
		return false
	}
	s.addFromClient(stream.bytes)
	rested := s.quiet != 0 || s.active.IsZero()
	if s.clientSent(stream); rested && s.quiet == 0 {
		s.active = time.Now()
	}
	s.left = s.left || stream.terminated
	if s.idle && s.closing == draining { // no answer will come after which the drain would be noticed
		_ = s.upstream.conn.SetReadDeadline(time.Now())
	}
	s.toServerBusy.Store(true)
	return true
}

// noteAnswer notes what PostgreSQL has sent, before it is passed on.
func (s *session) noteAnswer(stream *serverStream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serverSent(stream)
}

// noteDelivery notes what the client has received, and reports whether the session must end now.
func (s *session) noteDelivery(stream *serverStream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if took := s.addToClient(stream.bytes); took > 0 {
		s.counters.Answered(took)
	}
	s.clientReceived(stream)
	return s.endsNow(stream)
}

// onWakeUp handles the drain's wake-up: it reports whether the session must end now; otherwise reading continues.
func (s *session) onWakeUp(stream *serverStream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endsNow(stream) {
		return true
	}
	deadline := time.Time{}
	if s.phase == loggingIn {
		deadline = s.loginEnds
	}
	_ = s.upstream.conn.SetReadDeadline(deadline)
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

// ending reports whether the gateway is ending the session.
func (s *session) ending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing != notClosing
}

// end asks the session to end: draining, at its next idle moment; cutting, now, also inside a transaction.
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
		_ = s.client.raw.SetReadDeadline(time.Now()) // ends the goroutine that reads the client
		// A client that reads gets the answer in transit and then the reason. A client that does not read is given up.
		_ = s.client.raw.SetWriteDeadline(time.Now().Add(writeGrace))
		fallthrough
	default:
		if s.upstream != nil {
			_ = s.upstream.conn.SetReadDeadline(time.Now()) // wakes the goroutine that reads PostgreSQL, which decides
		}
	}
}

// cut ends the session now with an error for its client.
func (s *session) cut(why *fatalError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cutLocked(why)
}

// cutLocked is cut. The caller holds s.mu.
func (s *session) cutLocked(why *fatalError) {
	if s.closing < cutting {
		s.why = why
		s.endLocked(cutting)
	}
}

// isCut reports whether the gateway ends the session now, with an error for its client.
func (s *session) isCut() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing == cutting && s.why != nil
}

// outcome is how a session stands when one of its directions has ended.
type outcome struct {
	open       bool
	left       bool // the client expects no more
	idle       bool // outside a transaction and a statement
	unanswered bool // an answer is due
	cut        bool
	why        *fatalError // why the gateway ends it; nil: the gateway stops
}

func (s *session) outcome() outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	return outcome{
		open:       s.phase == open,
		left:       s.left || s.hungUp && (s.pending == 0 || s.quiet != 0),
		idle:       s.idle,
		unanswered: s.phase == open && (s.quiet == 0 || s.pending > 0),
		cut:        s.closing == cutting,
		why:        s.why,
	}
}

// endIfIdle ends the session if nothing has passed within its limit.
func (s *session) endIfIdle(now time.Time, timeouts idleTimeouts) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != open {
		return
	}
	waitsForClient := s.toClientBusy.Load() || s.inMessage && !s.toServerBusy.Load()
	if why := timeouts.exceeded(s.stillFor(now), waitsForClient, s.quiet); why != nil {
		s.cutLocked(why)
	}
}

// endIfStricter ends the session between two transactions if the new rules would not admit it as it is.
func (s *session) endIfStricter(rules []Rule) (ends bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.hasPolicy || s.closing != notClosing || policyFor(rules, s.client.who) <= s.policy { // before hasPolicy is set, who belongs to another goroutine
		return false
	}
	if s.client.who.physical {
		s.cutLocked(errPolicies)
	} else {
		s.why = errPolicies
		s.endLocked(draining)
	}
	return true
}

// endIfElsewhere ends an open session that is on a server other than the one for sessions.
func (s *session) endIfElsewhere() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase == open && s.upstream.isElsewhere() {
		s.cutLocked(errMoved)
	}
}

// endIfNamed ends an open session with this id.
func (s *session) endIfNamed(id string) (ends bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ends = s.client.id == id && s.isRunning()
	if ends {
		s.cutLocked(errEndedByOperator)
	}
	return ends
}

// endIfSuperseded ends the session if a recorded token supersedes a grant that it carries and the session is open: a
// client that has not logged in must learn nothing about fences.
func (s *session) endIfSuperseded(recorded map[string]fence.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isRunning() {
		return
	}
	if stale := s.claims.compare(recorded); stale != nil {
		s.counters.superseded.Add(1)
		s.cutLocked(staleError(stale))
	}
}

// isRunning reports whether the session is open and need not end now. The caller holds s.mu.
func (s *session) isRunning() bool { return s.phase == open && s.closing != cutting }

// resources returns the resources of the grants on which the session depends.
func (s *session) resources() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isRunning() {
		return nil
	}
	return s.claims.resources()
}

// tokenOf returns the token of the session's grant for a resource; 0: not known.
func (s *session) tokenOf(resource string) fence.Token {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claims.tokenOf(resource)
}

// learn sets the token of a grant that was presented by its seal alone.
func (s *session) learn(token fence.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claims.learn(token)
}

// tally adds the bytes since its last call to a total, unless the session has not opened. It returns the resource of
// the session's grant.
func (s *session) tally(all *Traffic) (resource string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase != open {
		return "", false
	}
	s.progress.tally(all)
	return s.claims.only().resource, true
}

// describe returns the session for people. false: it is not open.
func (s *session) describe() (Session, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isRunning() {
		return Session{}, false
	}
	var age time.Duration
	if s.quiet == 0 && !s.active.IsZero() {
		age = max(time.Since(s.active), time.Nanosecond)
	}
	states := map[byte]string{'I': "idle", 'T': "idle in transaction", 'E': "idle in transaction"}
	c, grant := s.client, s.claims.only()
	return Session{
		ID: c.id, Client: c.address(), User: c.who.user, Database: c.who.database, PID: s.upstream.pid(), Application: truncate(c.who.application),
		Resource: grant.resource, Token: grant.token, State: cmp.Or(states[s.quiet], "active"), Since: c.began, StatementAge: age,
		FromClient: s.fromClient, ToClient: s.toClient,
	}, true
}

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
