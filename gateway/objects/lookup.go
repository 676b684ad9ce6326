package objects

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
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
//
// No question has a timer of its own: to set one wakes a thread where nothing
// else is due, which took a tenth of a small read over one connection. Two timers
// look at all questions, the one while any is under way, the other while any
// look-up waits.
type lookups struct {
	pool    *pgxpool.Pool
	timeout time.Duration // of a look-up, its waiting included
	log     *slog.Logger
	limit   int // of questions under way; 0: no look-up is made here

	// patience is how long others wait for a question, at most twice that; then
	// the next one goes beside it. It decides how fast answers come, never which.
	patience time.Duration

	mu       sync.Mutex
	waiting  []*Lookup
	underWay []*question
	slow     int         // of those under way: others do not wait for them
	watch    *time.Timer // calls expire
	due      time.Time   // when it will; zero: it won't
	hurried  bool        // a timer will call hurry
}

const (
	maxAsked  = 128 // look-ups in one question
	maxHanded = 100 // then the pool gets the connection back, and may find that it is too old
)

func newLookups(db Database, log *slog.Logger) *lookups {
	l := &lookups{pool: db.pool, timeout: db.timeout, log: log, patience: 5 * time.Millisecond}
	config := db.pool.Config()
	if config.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement { // else there may be a pooler that keeps no statements
		l.limit = max(1, int(config.MaxConns)/2) // commits need connections, too
	}
	return l
}

// Lookup is one of them. Whoever began it calls wait or Leave, once.
type Lookup struct {
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
func (s *lookups) begin(bucket, key string) *Lookup {
	l := &Lookup{of: s, bucket: strings.Clone(bucket), key: strings.Clone(key), began: time.Now(), turn: make(chan struct{}, 1)}
	s.mu.Lock()
	if len(s.underWay) > s.slow || len(s.underWay) >= s.limit {
		s.waiting = append(s.waiting, l)
		s.hurryIn(s.patience)
		s.mu.Unlock()
		return l
	}
	q := s.next(l)
	s.mu.Unlock()
	q.send()
	l.turn <- struct{}{}
	return l
}

// IsOf reports whether the look-up is of this key.
func (l *Lookup) IsOf(bucket, key string) bool { return l.bucket == bucket && l.key == key }

// wait is the look-up's result. The error is errAskAlone.
func (l *Lookup) wait() (current, error) {
	<-l.turn
	if l.duty != nil {
		l.duty.finish()
	}
	return l.found, l.err
}

// Leave gives the look-up up. What others expect of it is done beside the caller,
// who must not learn how long that takes: he may have been refused. These are at
// most as many as questions under way.
func (l *Lookup) Leave() {
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
