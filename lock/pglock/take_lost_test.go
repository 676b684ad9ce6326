package pglock_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/lock/pglock"
)

// lossy loses answers: PostgreSQL has carried out a statement, and its connection ends.
type lossy struct {
	mu   sync.Mutex
	text string       // which statements; they are counted from 1
	lose map[int]bool // whose answers are lost
	sent int
}

// on makes the answers to some of the next statements with the text get lost.
func (l *lossy) on(text string, lose ...int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text, l.sent, l.lose = text, 0, make(map[int]bool)
	for _, n := range lose {
		l.lose[n] = true
	}
}

// statements returns how many statements with the text were sent.
func (l *lossy) statements() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent
}

// loses reports whether the answer to this message is lost.
func (l *lossy) loses(message []byte) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.text == "" || !bytes.Contains(message, []byte(l.text)) {
		return false
	}
	l.sent++
	return l.lose[l.sent]
}

type lossyConn struct {
	net.Conn
	l *lossy

	mu    sync.Mutex
	loses bool
}

func (c *lossyConn) Write(p []byte) (int, error) {
	if c.l.loses(p) {
		c.mu.Lock()
		c.loses = true
		c.mu.Unlock()
	}
	return c.Conn.Write(p)
}

func (c *lossyConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > 0 && c.loses {
		return 0, errors.Join(io.ErrUnexpectedEOF, c.Conn.Close())
	}
	return n, err
}

// lossyProcess is another process, whose answers may get lost.
func (w world) lossyProcess(t *testing.T) (*pglock.Source, *lossy) {
	t.Helper()
	config, err := pgxpool.ParseConfig(w.locker)
	if err != nil {
		t.Fatal(err)
	}
	pgfence.Configure(config)
	l, dial := &lossy{}, config.ConnConfig.DialFunc
	config.MaxConns = 4
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // each statement is sent with its text
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &lossyConn{Conn: conn, l: l}, err
	}
	p, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	s := source(t, pglock.Config{Pool: p, MaxTTL: hour})
	pglock.GiveTime(s)
	return s, l
}

// The group sees that another transaction has the resource's turn. The first try alone frees the lease, and the second
// finds nothing.
func TestAReleaseWhoseAnswerIsLostIsDone(t *testing.T) {
	t.Parallel()
	w := setup(t)
	s, l := w.lossyProcess(t)
	for name, lose := range map[string]int{"the group's": 1, "the first try's": 2} {
		lease, err := leasing.One(s.Acquire(t.Context(), leasing.AtOnce, leasing.Request{Resource: "r", TTL: hour}))
		if err != nil {
			t.Fatal(err)
		}
		l.on("fence.free_leases", lose)
		turn := func() {}
		if lose == 2 {
			turn = w.lock(t, `SELECT FROM fence.arms WHERE resource = 'r' FOR UPDATE`)
		}
		outcome := make(chan error, 1)
		go func() { outcome <- s.Release(t.Context(), lease.Ref()) }()
		until(t, "the try is sent", func() bool { return l.statements() >= lose })
		turn()
		if err := <-outcome; err != nil {
			t.Errorf("%s answer was lost: %v; want nil, because the lease was freed", name, err)
		}
		if w.isLocked(t, "r") {
			t.Errorf("%s answer was lost: the resource is not free", name)
		}
	}
	if err := s.Release(t.Context(), leasing.Ref{Resource: "r", Owner: "another"}); !errors.Is(err, leasing.ErrLost) {
		t.Errorf("no answer was lost: %v; want ErrLost", err)
	}
}

// The attempt may still be on its way, so that nothing is there yet.
func TestALostAnswerFreesNothingByItself(t *testing.T) {
	t.Parallel()
	w := setup(t)
	s, l := w.lossyProcess(t)
	l.on("fence.free_leases", 1)
	if freed, answered := pglock.FreeBack(s, "r", "its owner"); freed || !answered {
		t.Errorf("freed: %t, answered: %t; want that it found nothing", freed, answered)
	}
	w.exec(t, `SELECT fence.take_lease('r', 'its owner', 3600000000, sha256('seal'), '', false)`)
	l.on("fence.free_leases", 1)
	if freed, answered := pglock.FreeBack(s, "r", "its owner"); freed || !answered {
		t.Errorf("freed: %t, answered: %t; the answer that it was freed is lost, and so it has to look again", freed, answered)
	}
	if w.isLocked(t, "r") {
		t.Error("it is not freed")
	}
}

// The repetition finds another holder. The try before it may take the lease later, when nobody waits for its answer.
func TestAnAttemptWithoutAnAnswerIsGivenBackThoughItsRepetitionIsRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `SELECT fence.take_lease('r', 'another', 3600000000, sha256('seal'), '', false)`)
	for name, c := range map[string]struct {
		text string
		wait leasing.Wait
	}{"in a group": {"fence.take_leases(", leasing.AtOnce}, "alone": {"fence.take_lease(", leasing.UntilDone}} {
		s, l := w.lossyProcess(t)
		l.on(c.text, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		acquired := make(chan error, 1)
		go func() {
			_, err := s.Acquire(ctx, c.wait, leasing.Request{Resource: "r", TTL: hour})
			acquired <- err
		}()
		until(t, name+", an answer is lost", func() bool { return l.statements() > 0 })
		l.on("fence.free_leases")
		until(t, name+", it is looked for", func() bool { return l.statements() > 0 })
		cancel() // Acquire waits for the holder
		if err := <-acquired; !errors.Is(err, leasing.ErrHeld) {
			t.Errorf("%s: %v; want ErrHeld", name, err)
		}
	}
}
