//go:build unix

package objects

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// locked has every look-up hang in PostgreSQL until the transaction ends.
func (a *asking) locked() pgx.Tx {
	a.t.Helper()
	tx, err := a.db.Begin(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(a.t.Context())) })
	if _, err := tx.Exec(a.t.Context(), "LOCK TABLE objects.pointers"); err != nil {
		a.t.Fatal(err)
	}
	return tx
}

// A session that waits for a lock does not notice that its client is gone: as long
// as the lock is held, each question that was given up would leave one behind.
func TestAQuestionThatIsGivenUpEndsInPostgreSQL(t *testing.T) {
	t.Parallel()
	a := setUpLookups(t, time.Millisecond)
	a.endAfter(200 * time.Millisecond)
	a.locked()
	for range 3 {
		var readers sync.WaitGroup
		for range 8 {
			l := a.lookups.begin("b", "first")
			readers.Go(func() {
				if _, err := l.wait(); !errors.Is(err, errAskAlone) {
					t.Errorf("got %v", err)
				}
			})
		}
		readers.Wait()
	}
	a.nothingIsLeft()
	for limit, left := time.After(10*time.Second), 1; left > 0; {
		err := a.db.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND state = 'active' AND query LIKE 'SELECT %objects.pointers p%' AND pid <> pg_backend_pid()`).Scan(&left)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-limit:
			t.Fatalf("%d sessions wait for the lock still", left)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Whoever waited behind a question that hung has less time left than one that begins now.
func TestALookUpThatWaitedBehindOneThatHangsEndsAtItsDeadline(t *testing.T) {
	t.Parallel()
	a := setUpLookups(t, time.Hour)
	const timeout = 4 * time.Second
	a.endAfter(timeout)
	a.locked()
	first := a.lookups.begin("b", "first")
	<-time.After(timeout / 4)
	later := a.lookups.begin("b", "first")
	var readers sync.WaitGroup
	for _, l := range []*Lookup{first, later} {
		readers.Go(func() {
			if _, err := l.wait(); !errors.Is(err, errAskAlone) {
				t.Errorf("got %v", err)
			}
			if took := time.Since(l.began); took > timeout*3/2 {
				t.Errorf("it took %s, and may take %s", took, timeout)
			}
		})
	}
	readers.Wait()
	a.nothingIsLeft()
}

// An answer that is there does not wait for what the next question needs.
func TestAnAnswerDoesNotWaitForTheNextQuestion(t *testing.T) {
	t.Parallel()
	a := setUpLookups(t, time.Hour)
	a.pool.Reset() // a connection on which nothing is prepared
	if c, err := a.lookups.begin("b", "warm").wait(); err != nil || !c.key {
		t.Fatalf("got %+v, %v", c, err)
	}
	first, release := a.held()
	next, last := a.lookups.begin("b", "warm"), a.lookups.begin("b", "warm")
	answered := make(chan error, 1)
	go func() {
		_, err := first.wait()
		answered <- err
	}()
	<-a.wire.came // PostgreSQL has answered it
	tx := a.locked()
	release()
	select {
	case err := <-answered:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Error("it waits")
	}
	_ = tx.Rollback(t.Context())
	for _, l := range []*Lookup{next, last} {
		if c, err := l.wait(); err != nil || !c.key {
			t.Errorf("the next: %+v, %v", c, err)
		}
	}
	a.nothingIsLeft()
}

func TestALookUpEndsAtItsDeadline(t *testing.T) {
	t.Parallel()
	a := setUpLookups(t, time.Hour)
	a.endAfter(100 * time.Millisecond)
	tx := a.locked()
	began := time.Now()
	var readers sync.WaitGroup
	for range 10 {
		readers.Go(func() {
			if _, _, err := a.current(a.t.Context(), nil, "b", "first"); !errors.Is(err, ErrDatabaseAway) {
				t.Errorf("got %v", err)
			}
		})
	}
	readers.Wait()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	_ = tx.Rollback(t.Context())
	for found := false; !found; { // a busy machine may need more than one deadline to connect
		var err error
		if _, found, err = a.current(a.t.Context(), nil, "b", "first"); !found && time.Since(began) > 30*time.Second {
			t.Fatalf("afterwards: %v", err)
		}
	}
	if _, err := a.pool.Exec(t.Context(), "SELECT pg_sleep(0.3)"); err != nil {
		t.Errorf("a connection came back with a deadline: %v", err)
	}
	a.nothingIsLeft()
}

// Each has its own deadline, though one timer looks at all of them.
func TestLookUpsThatHangEndEachAtItsDeadline(t *testing.T) {
	t.Parallel()
	a := setUpLookups(t, time.Millisecond)
	a.endAfter(200 * time.Millisecond)
	a.locked()
	began := time.Now()
	var readers sync.WaitGroup
	for range a.lookups.limit { // each hangs beside the others: nothing begins later
		l := a.lookups.begin("b", "first")
		readers.Go(func() {
			if _, err := l.wait(); !errors.Is(err, errAskAlone) {
				t.Errorf("got %v", err)
			}
		})
		<-time.After(20 * time.Millisecond)
	}
	readers.Wait()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
	a.nothingIsLeft()
}

func TestAnAnswerThatComesAtTheDeadlineCountsAndLeavesTheConnectionWithoutOne(t *testing.T) {
	t.Parallel()
	a := setUpLookups(t, time.Hour)
	a.endAfter(2 * time.Second) // in which PostgreSQL must have answered
	first, release := a.held()
	answered := make(chan error)
	go func() {
		_, err := first.wait()
		answered <- err
	}()
	<-a.wire.came
	for limit, expired := time.After(10*time.Second), false; !expired; {
		a.lookups.mu.Lock()
		expired = len(a.lookups.underWay) == 1 && a.lookups.underWay[0].expired
		a.lookups.mu.Unlock()
		select {
		case <-limit:
			t.Fatal("the question does not expire")
		case <-time.After(time.Millisecond):
		}
	}
	release()
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if n := a.pool.Stat().TotalConns(); n != 1 {
		t.Errorf("%d connections are left, want the one", n)
	}
	if _, err := a.pool.Exec(t.Context(), "SELECT pg_sleep(0.1)"); err != nil {
		t.Errorf("the connection came back with a deadline: %v", err)
	}
	a.nothingIsLeft()
}
