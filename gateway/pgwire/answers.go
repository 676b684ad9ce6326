package pgwire

// answers follows what PostgreSQL owes a client: one ReadyForQuery for each Query,
// FunctionCall and Sync. A Sync that it reads among the data of a COPY it ignores;
// drivers send such a one right behind Execute, whether that begins a COPY or not. A
// session's mu guards it.
type answers struct {
	pending   int  // ReadyForQuery messages that PostgreSQL owes
	ahead     int  // of these, those that it does not owe if it begins a COPY: the end of its data has been sent
	unsynced  bool // messages were sent whose answer ends with a Sync that is still to come
	simple    bool // the last command was a Query, or a FunctionCall
	copyIn    bool // PostgreSQL reads the data of a COPY by Execute, whose end has not been sent
	inMessage bool // the last byte of the client was not the end of a message
	quiet     byte // status of the ReadyForQuery that was the last word of both sides; 0: there was more
	idle      bool // quiet outside of a transaction, and between two messages of the client
}

// sent notes what is about to be passed on to PostgreSQL. What it never answers, such as
// the rest of a COPY that has failed, leaves a session as quiet as it is.
func (a *answers) sent(c *clientStream) {
	switch {
	case !c.copyEnded:
		a.pending += c.syncs
	case a.copyIn:
		a.copyIn, a.ahead = false, c.between
		a.pending = c.between + c.syncs
	default:
		a.pending += c.before
		if a.ahead == 0 {
			a.ahead = a.pending
		}
		a.pending += c.between + c.syncs
	}
	a.unsynced, a.simple, a.inMessage = c.unsynced, c.simple, !c.boundary()
	if c.asks {
		a.quiet = 0
	}
	a.settle()
}

// comes notes what PostgreSQL has sent, before the client hears of it and answers.
func (a *answers) comes(s *serverStream) {
	a.answered(s.ready - s.late)
	if s.copies {
		a.copyBegins()
	}
	a.answered(s.late)
	if s.late > 0 && s.copyIn {
		a.copyBegins()
	}
	if s.fails && a.copyIn { // it has read each Sync that was sent so far, and skips to the next one
		a.copyIn, a.pending = false, 0
	}
}

func (a *answers) answered(n int) {
	if n > 0 {
		a.pending, a.ahead, a.copyIn = max(0, a.pending-n), max(0, a.ahead-n), false
	}
}

func (a *answers) copyBegins() {
	a.copyIn = a.ahead == 0 && !a.simple
	a.pending -= a.ahead
	a.ahead = 0
}

// came notes that the client has got what PostgreSQL sent.
func (a *answers) came(s *serverStream) {
	if s.ready > 0 && a.pending == 0 && !a.unsynced {
		a.quiet = s.status
	}
	a.settle()
}

func (a *answers) settle() { a.idle = a.quiet == 'I' && !a.inMessage }
