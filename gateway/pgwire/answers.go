package pgwire

// answers tracks which answers PostgreSQL owes a client: one ReadyForQuery for each Query, FunctionCall and Sync that
// it does not skip. The last ReadyForQuery alone does not suffice: a client that sent two statements at once receives
// one while the second runs. PostgreSQL skips a Query or FunctionCall between a failed message of the extended protocol
// and the next Sync, and a Sync among the data of a COPY by Execute. The count may then stay too high, so a
// ReadyForQuery after which the client has sent nothing makes the session quiet. If the client had sent more ahead,
// that is too early, by the statements that still run. The session's mu guards it.
type answers struct {
	pending   int  // ReadyForQuery messages that PostgreSQL owes; may be too high
	extended  bool // messages of the extended protocol were sent since the session was quiet
	skippable bool // a Query or FunctionCall among them was sent before their Sync
	guessed   bool // pending may be too high
	more      bool // the client has sent something since PostgreSQL's last message
	unsynced  bool // messages were sent whose answer ends with a Sync not yet sent
	inMessage bool // the client's last byte was not the end of a message
	quiet     byte // status of the ReadyForQuery that was the last message of both sides; 0: there was more
	idle      bool // quiet, outside a transaction, and between two messages of the client
}

// clientSent notes what is about to be passed on to PostgreSQL. Messages that have no answer, such as the rest of a
// failed COPY, leave a quiet session quiet.
func (a *answers) clientSent(c *clientStream) {
	if c.asks {
		if a.quiet != 0 {
			a.pending, a.extended, a.skippable, a.guessed = 0, false, false, false
		}
		a.quiet, a.more = 0, true
	}
	a.pending += c.syncs
	a.extended, a.skippable = a.extended || c.extended, a.skippable || c.skippable
	a.unsynced, a.inMessage = c.unsynced, !c.boundary()
	a.settle()
}

// serverSent notes what PostgreSQL has sent, before the client receives it and can answer.
func (a *answers) serverSent(s *serverStream) {
	a.pending, a.more = max(0, a.pending-s.ready), false
	a.guessed = a.guessed || a.extended && s.copies || a.skippable && s.fails
}

// clientReceived notes that the client has received what PostgreSQL sent.
func (a *answers) clientReceived(s *serverStream) {
	if s.ready > 0 && !s.copyIn && !a.unsynced && (a.pending == 0 || a.guessed && !a.more) {
		a.quiet = s.status
	}
	a.settle()
}

func (a *answers) settle() { a.idle = a.quiet == 'I' && !a.inMessage }
