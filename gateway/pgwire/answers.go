package pgwire

// answers follows whether PostgreSQL owes a client something: one ReadyForQuery for each
// Query, FunctionCall and Sync, but for those that it skips. The last ReadyForQuery alone does
// not tell: a client that sent two statements at once gets it while the second one runs. It skips behind a message of
// the extended protocol that failed, and among the data of a COPY by Execute. Then the count
// may be too high for ever, and a ReadyForQuery behind which the client has sent nothing is
// believed: the session is quiet. Where more was sent ahead that is too early, by the
// statements that still run. A session's mu guards it.
type answers struct {
	pending   int  // ReadyForQuery messages that PostgreSQL owes, or more
	extended  bool // messages of the extended protocol were sent since the session was quiet
	guessed   bool // pending may be too high
	more      bool // something was sent since PostgreSQL's last word
	unsynced  bool // messages were sent whose answer ends with a Sync that is still to come
	inMessage bool // the last byte of the client was not the end of a message
	quiet     byte // status of the ReadyForQuery that was the last word of both sides; 0: there was more
	idle      bool // quiet outside of a transaction, and between two messages of the client
}

// sent notes what is about to be passed on to PostgreSQL. What it never answers, such as
// the rest of a COPY that has failed, leaves a session as quiet as it is.
func (a *answers) sent(c *clientStream) {
	if c.asks {
		if a.quiet != 0 {
			a.pending, a.extended, a.guessed = 0, false, false
		}
		a.quiet, a.more = 0, true
	}
	a.pending += c.syncs
	a.extended = a.extended || c.extended
	a.unsynced, a.inMessage = c.unsynced, !c.boundary()
	a.settle()
}

// comes notes what PostgreSQL has sent, before the client receives it and answers.
func (a *answers) comes(s *serverStream) {
	a.pending, a.more = max(0, a.pending-s.ready), false
	a.guessed = a.guessed || a.extended && (s.copies || s.fails)
}

// came notes that the client has got what PostgreSQL sent.
func (a *answers) came(s *serverStream) {
	if s.ready > 0 && !s.copyIn && !a.unsynced && (a.pending == 0 || a.guessed && !a.more) {
		a.quiet = s.status
	}
	a.settle()
}

func (a *answers) settle() { a.idle = a.quiet == 'I' && !a.inMessage }
