package pgwire

import "time"

var (
	errIdle = &fatalError{
		code: codeIdleSession, message: "terminating connection due to the gateway's idle-session timeout",
		hint: "Connect again; keep a pool's connections shorter than the timeout.",
	}
	errIdleInTransaction = &fatalError{
		code: codeIdleInTransaction, message: "terminating connection due to the gateway's idle-in-transaction timeout",
		hint: "The transaction is rolled back. End transactions before you wait for anything.",
	}
)

// errSlowClient rarely reaches the client, whose stream is usually inside a message.
var errSlowClient = &fatalError{
	code: codeConnectionFailure, message: "terminating connection: the client neither read nor sent anything for the gateway's slow-client timeout",
	hint: "Read results as they come, or fetch them in portions.",
}

// idleTimeouts bound how long nothing may pass in an open session; 0: not bounded.
type idleTimeouts struct{ outside, inTransaction, slowClient time.Duration }

// checksPerTimeout is how many checks fall into an idle timeout: a session ends late by at most that fraction.
const checksPerTimeout = 16

// pause returns the time between two checks; 0: no checks are needed.
func (t idleTimeouts) pause() time.Duration {
	var shortest time.Duration
	for _, timeout := range []time.Duration{t.outside, t.inTransaction, t.slowClient} {
		if timeout > 0 && (shortest == 0 || timeout < shortest) {
			shortest = timeout
		}
	}
	if shortest == 0 {
		return 0
	}
	return max(shortest/checksPerTimeout, time.Millisecond)
}

// exceeded returns why a session must end in which nothing has passed for a while; nil: it need not. status is that of
// PostgreSQL's last ReadyForQuery; 0: an answer is due.
func (t idleTimeouts) exceeded(still time.Duration, waitsForClient bool, status byte) *fatalError {
	var limit time.Duration
	why := errIdle
	switch {
	case waitsForClient:
		limit, why = t.slowClient, errSlowClient
	case status == 'I':
		limit = t.outside
	case status != 0:
		limit, why = t.inTransaction, errIdleInTransaction
	}
	if limit > 0 && still >= limit {
		return why
	}
	return nil
}
