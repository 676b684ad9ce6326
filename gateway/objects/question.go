package objects

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// question asks for several look-ups at once.
type question struct {
	of     *lookups
	asked  []*Lookup // the first is the reader
	began  time.Time
	ctx    context.Context // ends with the question, or at its deadline
	cancel context.CancelFunc
	conn   *pgxpool.Conn // written under of.mu
	handed int           // how often the connection was handed on
	sent   bool
	err    error // why it failed

	slow    bool // guarded by of.mu
	expired bool // guarded by of.mu: its deadline is over, and so is the connection's
}

var errOverdue = errors.New("PostgreSQL did not answer in time")

// next makes a question of the look-ups, or else of those that wait; nil where
// none does. It is under of.mu, and counts the question as under way.
func (s *lookups) next(asked ...*Lookup) *question {
	if len(asked) == 0 {
		n := min(len(s.waiting), maxAsked)
		asked = slices.Clone(s.waiting[:n])
		s.waiting = slices.Delete(s.waiting, 0, n)
	}
	if len(asked) == 0 {
		return nil
	}
	q := &question{of: s, asked: asked, began: time.Now()}
	q.ctx, q.cancel = context.WithCancel(context.Background())
	asked[0].duty = q
	s.underWay = append(s.underWay, q)
	s.expireAt(q.deadline())
	return q
}

// deadline is that of the look-up that has waited longest. Whoever waits behind
// this question began later, and so does not wait longer than it may.
func (q *question) deadline() time.Time { return q.asked[0].began.Add(q.of.timeout) }

// expireAt has expire called then, if not before. It is under mu. A later question
// can have the earlier deadline, where its look-ups waited for one that hung.
func (s *lookups) expireAt(at time.Time) {
	if !s.due.IsZero() && !at.Before(s.due) {
		return
	}
	s.due = at
	if s.watch == nil {
		s.watch = time.AfterFunc(time.Until(at), s.expire)
	} else {
		s.watch.Reset(time.Until(at))
	}
}

// expire ends the questions whose deadline is over.
func (s *lookups) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = time.Time{}
	for _, q := range s.underWay {
		if at := q.deadline(); time.Until(at) > 0 {
			s.expireAt(at)
		} else {
			q.expire()
		}
	}
}

// expire is under of.mu.
func (q *question) expire() {
	q.expired = true
	q.cancel()
	if q.conn != nil {
		_ = q.conn.Conn().PgConn().Conn().SetDeadline(time.Unix(1, 0))
	}
}

// hurryIn has hurry called. It is under mu.
func (s *lookups) hurryIn(pause time.Duration) {
	if !s.hurried {
		s.hurried = true
		time.AfterFunc(pause, s.hurry)
	}
}

// hurry lets those who wait go on without a question that takes long.
func (s *lookups) hurry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hurried = false
	pause := s.patience
	for _, q := range s.underWay {
		if age := time.Since(q.began); !q.slow && age < s.patience {
			pause = s.patience - age
		} else if !q.slow {
			q.slow = true
			s.slow++
		}
	}
	if len(s.underWay) == s.slow && len(s.underWay) < s.limit {
		if beside := s.next(); beside != nil {
			beside.asked[0].turn <- struct{}{} // who will send it
		}
	}
	if len(s.waiting) > 0 {
		s.hurryIn(pause)
	}
}

// send sends the question. A failure is found by finish.
func (q *question) send() {
	q.sent = true
	q.err = q.trySend()
}

func (q *question) trySend() error {
	if q.conn == nil {
		conn, err := q.of.pool.Acquire(q.ctx)
		if err != nil {
			return err
		}
		q.of.mu.Lock()
		q.conn = conn
		q.of.mu.Unlock()
		for _, sql := range []string{sqlAskOne, sqlAskMany} { // now, for whoever hands the connection on has answers to give first
			if _, err := conn.Conn().Prepare(q.ctx, sql, sql); err != nil {
				return err
			}
		}
	}
	sql, values := q.statement()
	sd, err := q.conn.Conn().Prepare(q.ctx, sql, sql) // prepared already: no round trip
	if err != nil {
		return err
	}
	if err := q.ctx.Err(); err != nil { // it may have expired before the connection was there
		return err
	}
	// No pipeline of pgconn's: that sets a timer for each.
	wire := q.conn.Conn().PgConn().Frontend()
	wire.SendBind(&pgproto3.Bind{PreparedStatement: sd.Name, ParameterFormatCodes: binaryFormat, Parameters: values, ResultFormatCodes: binaryFormat})
	wire.SendExecute(&pgproto3.Execute{})
	wire.SendSync(&pgproto3.Sync{})
	return wire.Flush()
}

// finish reads the answer, sends the next question, and tells those who asked.
func (q *question) finish() {
	if !q.sent { // who promoted this one did not send it
		q.send()
	}
	if q.err == nil {
		q.err = q.read()
	}
	if q.err != nil {
		if q.ctx.Err() != nil {
			q.err = errOverdue
		}
		q.fail()
	}
	next := q.pass()
	for _, l := range q.asked[1:] {
		l.turn <- struct{}{}
	}
	if next != nil {
		next.asked[0].turn <- struct{}{}
	}
}

// pass ends the question and begins the next one, if any look-up waits. The next
// reader sends it where there is no connection to hand on.
func (q *question) pass() *question {
	s := q.of
	s.mu.Lock()
	s.underWay = slices.DeleteFunc(s.underWay, func(other *question) bool { return other == q })
	if q.slow {
		s.slow--
	}
	if q.expired && q.conn != nil { // the answer was there already
		_ = q.conn.Conn().PgConn().Conn().SetDeadline(time.Time{})
	}
	var next *question
	if len(s.underWay) <= s.slow { // else another one was begun beside this one
		next = s.next()
	}
	handOn := next != nil && q.conn != nil && q.handed < maxHanded
	if handOn {
		next.conn, next.handed = q.conn, q.handed+1
	}
	s.mu.Unlock()
	q.cancel()
	switch {
	case handOn:
		next.send()
	case q.conn != nil:
		q.conn.Release()
	}
	return next
}

// fail lets each look-up be made alone, and gives the connection up: who knows
// what else comes on it.
func (q *question) fail() {
	q.of.log.Warn("s3: a common look-up failed; each is made alone", "look_ups", len(q.asked), "error", q.err)
	for _, l := range q.asked {
		l.found, l.err = current{}, errAskAlone
	}
	q.of.mu.Lock()
	conn := q.conn
	q.conn = nil
	q.of.mu.Unlock()
	if conn != nil {
		go abandon(conn, errors.Is(q.err, errOverdue))
	}
}

// abandon ends a connection. What PostgreSQL does on it is cancelled, for a session
// that waits for a lock does not notice that its client is gone. The pool's Close
// waits for this.
func abandon(conn *pgxpool.Conn, cancels bool) {
	const patience = 5 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if raw := conn.Conn().PgConn(); cancels && !raw.IsClosed() { // else pgx has done so
		_ = raw.CancelRequest(ctx)
	}
	_ = conn.Conn().Close(ctx)
	conn.Release() // the pool sees that it is closed
}

// read reads the answer.
func (q *question) read() error {
	for {
		message, err := q.conn.Conn().PgConn().ReceiveMessage(context.Background())
		if err != nil {
			return err
		}
		switch m := message.(type) {
		case *pgproto3.DataRow:
			if err := q.take(m.Values); err != nil {
				return err
			}
		case *pgproto3.ErrorResponse:
			return pgconn.ErrorResponseToPgError(m)
		case *pgproto3.ReadyForQuery:
			return nil
		}
	}
}
