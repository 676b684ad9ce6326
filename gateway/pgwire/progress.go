package pgwire

import "time"

// progress notes how much of a session passes, and when. The session's mu guards it.
type progress struct {
	fromClient, toClient int64 // bytes since it opened
	tallied              struct{ fromClient, toClient int64 }

	moves        uint64    // how often bytes passed in either direction
	checkedMoves uint64    // moves at the last idle check
	still        time.Time // since when moves has not changed

	asked    time.Time // when the first statement was passed on
	answered bool      // the first byte of its answer has passed
	active   time.Time // when the running statement was passed on
}

// addFromClient notes n bytes of the client that are about to be passed on.
func (p *progress) addFromClient(n int64) {
	if p.asked.IsZero() {
		p.asked = time.Now()
	}
	p.fromClient += n
	p.moves++
}

// addToClient notes n bytes that the client has received. It returns the time since the first statement if they are the
// first of its answer; otherwise 0.
func (p *progress) addToClient(n int64) (firstByte time.Duration) {
	if !p.answered && !p.asked.IsZero() && p.toClient > 0 { // the first bytes are the login's ReadyForQuery
		p.answered = true
		firstByte = max(time.Since(p.asked), time.Nanosecond)
	}
	p.toClient += n
	p.moves++
	return firstByte
}

// stillFor returns how long nothing has passed, as far as the checks show.
func (p *progress) stillFor(now time.Time) time.Duration {
	if p.moves != p.checkedMoves || p.still.IsZero() {
		p.checkedMoves, p.still = p.moves, now
	}
	return now.Sub(p.still)
}

// tally adds the bytes since its last call to a total.
func (p *progress) tally(all *Traffic) {
	all.FromClient += p.fromClient - p.tallied.fromClient
	all.ToClient += p.toClient - p.tallied.toClient
	p.tallied.fromClient, p.tallied.toClient = p.fromClient, p.toClient
}
