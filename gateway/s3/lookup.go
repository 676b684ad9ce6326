package s3

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// lookups find the current versions of keys. Those that begin while a question
// to PostgreSQL is under way are asked together in the next one: one statement,
// one round trip and one wake-up for all of them. Nobody waits where none is.
//
// A question's snapshot is taken after all of its look-ups began, so each sees
// every write that was acknowledged before it. Nothing is remembered from one
// question to the next.
//
// Requests do the work. Of the look-ups of a question one is its reader; who
// has read an answer sends the next question, and the first in that is the next
// reader. A question is only the quick way: where it fails, for whatever reason,
// its look-ups are made one by one, so that none fails for another's sake.
type lookups struct {
	pool    *pgxpool.Pool
	timeout time.Duration // of a look-up, its waiting included
	log     *slog.Logger
	limit   int // of questions under way; 0: no look-up is made here

	// patience is how long others wait for a question; then the next one goes
	// beside it. It decides how fast answers come, never which.
	patience time.Duration

	mu       sync.Mutex
	waiting  []*lookup
	underWay int
	slow     int // of those under way: others do not wait for them
}

const (
	maxAsked  = 128 // look-ups in one question
	maxHanded = 100 // then the pool gets the connection back, and may find that it is too old
)

func newLookups(cfg Config) *lookups {
	l := &lookups{pool: cfg.Pool, timeout: cfg.DatabaseTimeout, log: cfg.Logger, patience: 5 * time.Millisecond}
	config := cfg.Pool.Config()
	if config.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement { // else there may be a pooler that keeps no statements
		l.limit = max(1, int(config.MaxConns)/2) // commits need connections, too
	}
	return l
}

// lookup is one of them. Whoever began it calls wait or leave, once.
type lookup struct {
	of          *lookups
	bucket, key string
	began       time.Time

	// One token comes: the result is there, or the duty to read the question's answer.
	turn chan struct{}
	duty *question // nil: somebody else's; guarded by of.mu until the turn

	found current
	err   error // errAskAlone
}

// errAskAlone: the question failed; the look-up itself may well succeed.
var errAskAlone = errors.New("look-up was not answered")

// begin begins a look-up, and does not wait for its answer.
func (s *lookups) begin(bucket, key string) *lookup {
	l := &lookup{of: s, bucket: strings.Clone(bucket), key: strings.Clone(key), began: time.Now(), turn: make(chan struct{}, 1)}
	s.mu.Lock()
	if s.underWay > s.slow || s.underWay >= s.limit {
		s.waiting = append(s.waiting, l)
		s.mu.Unlock()
		return l
	}
	q := s.next(l)
	s.mu.Unlock()
	q.send()
	l.turn <- struct{}{}
	return l
}

// wait is the look-up's result. The error is errAskAlone.
func (l *lookup) wait() (current, error) {
	<-l.turn
	if l.duty != nil {
		l.duty.finish()
	}
	return l.found, l.err
}

// leave gives the look-up up. What others expect of it is done beside the caller,
// who must not learn how long that takes: he may have been refused. These are at
// most as many as questions under way.
func (l *lookup) leave() {
	s := l.of
	s.mu.Lock()
	if i := slices.Index(s.waiting, l); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
	reads := l.duty != nil
	s.mu.Unlock()
	if reads {
		go func() {
			defer func() {
				if p := recover(); p != nil { // as in a request: it does not end the gateway
					s.log.Error("s3: a look-up panicked", "panic", p)
				}
			}()
			_, _ = l.wait()
		}()
	}
}

// question asks for several look-ups at once.
type question struct {
	of       *lookups
	asked    []*lookup // the first is the reader
	conn     *pgxpool.Conn
	handed   int              // how often the connection was handed on
	answer   *pgconn.Pipeline // nil: it was not sent
	err      error            // why not
	overdue  *time.Timer
	slow     bool // guarded by of.mu
	finished bool // guarded by of.mu
}

// next makes a question of the look-ups, or else of those that wait; nil where
// none does. It is under of.mu, and counts the question as under way.
func (s *lookups) next(asked ...*lookup) *question {
	if len(asked) == 0 {
		n := min(len(s.waiting), maxAsked)
		asked = slices.Clone(s.waiting[:n])
		s.waiting = slices.Delete(s.waiting, 0, n)
	}
	if len(asked) == 0 {
		return nil
	}
	q := &question{of: s, asked: asked}
	asked[0].duty = q
	s.underWay++
	q.overdue = time.AfterFunc(s.patience, q.isSlow)
	return q
}

// isSlow lets others go on without this question.
func (q *question) isSlow() {
	s := q.of
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.finished {
		return
	}
	q.slow = true
	s.slow++
	if s.underWay < s.limit {
		if beside := s.next(); beside != nil {
			beside.asked[0].turn <- struct{}{} // who will send it
		}
	}
}

// deadline is that of the look-up that has waited longest. Whoever waits behind
// this question began later, and so does not wait longer than it may.
func (q *question) deadline() time.Time { return q.asked[0].began.Add(q.of.timeout) }

// send sends the question. A failure is found by finish.
func (q *question) send() {
	q.err = q.trySend()
}

func (q *question) trySend() error {
	ctx, cancel := context.WithDeadline(context.Background(), q.deadline())
	defer cancel()
	var err error
	if q.conn == nil {
		if q.conn, err = q.of.pool.Acquire(ctx); err != nil {
			return err
		}
	}
	sql, values := q.statement()
	sd, err := q.conn.Conn().Prepare(ctx, sql, sql) // a round trip the first time only
	if err != nil {
		return err
	}
	raw := q.conn.Conn().PgConn()
	if err := raw.Conn().SetDeadline(q.deadline()); err != nil {
		return err
	}
	q.answer = raw.StartPipeline(context.Background())
	q.answer.SendQueryStatement(sd, values, binaryFormat, binaryFormat)
	return q.answer.Sync()
}

// finish reads the answer, sends the next question, and tells those who asked.
func (q *question) finish() {
	if q.answer == nil && q.err == nil { // who promoted this one did not send it
		q.send()
	}
	if q.err == nil {
		q.err = q.read()
	}
	if q.err != nil {
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
	q.overdue.Stop()
	s.mu.Lock()
	q.finished = true
	s.underWay--
	if q.slow {
		s.slow--
	}
	var next *question
	if s.underWay <= s.slow { // else another one was begun beside this one
		next = s.next()
	}
	s.mu.Unlock()
	switch {
	case q.conn == nil:
	case next == nil || q.handed == maxHanded:
		q.conn.Release()
	default:
		next.conn, next.handed = q.conn, q.handed+1
		next.send()
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
	if q.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if q.answer != nil {
		_ = q.answer.Close()
	}
	_ = q.conn.Conn().Close(ctx)
	q.conn.Release() // the pool sees that it is closed
	q.conn = nil
}

// read reads the answer.
func (q *question) read() error {
	result, err := q.answer.GetResults()
	if err != nil {
		return err
	}
	rows, ok := result.(*pgconn.ResultReader)
	if !ok {
		return fmt.Errorf("PostgreSQL answered a question with %T", result)
	}
	for rows.NextRow() {
		if err := q.take(rows.Values()); err != nil {
			return err
		}
	}
	if _, err := rows.Close(); err != nil {
		return err
	}
	if err := q.answer.Close(); err != nil {
		return err
	}
	return q.conn.Conn().PgConn().Conn().SetDeadline(time.Time{})
}
