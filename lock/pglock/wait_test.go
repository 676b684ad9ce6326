package pglock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence/leasing"
)

// waiters returns how many processes wait for r.
func (w world) waiters(t *testing.T) int {
	t.Helper()
	ins, err := leasing.One(w.Inspect(t.Context(), "r"))
	if err != nil {
		t.Fatal(err)
	}
	return ins.Waiters
}

func TestProcessesAreServedInTheOrderInWhichTheyCame(t *testing.T) {
	t.Parallel()
	w := setup(t)
	held := w.take(t, "r", ttl)
	const n = 3
	order := make(chan int, n)
	var done sync.WaitGroup
	for i := range n {
		s := w.process(t)
		done.Go(func() {
			lease, err := leasing.One(s.Acquire(t.Context(), leasing.UntilDone, leasing.Request{Resource: "r", TTL: ttl}))
			if err != nil {
				t.Errorf("process %d: %v", i, err)
			}
			order <- i
			if err := s.Release(t.Context(), lease.Ref()); err != nil {
				t.Errorf("process %d: %v", i, err)
			}
		})
		until(t, "it stands in the line", func() bool { return w.waiters(t) == i+1 })
	}
	if err := w.Release(t.Context(), held.Ref()); err != nil {
		t.Fatal(err)
	}
	for want := range n {
		if got := <-order; got != want {
			t.Errorf("process %d came as number %d", got, want)
		}
	}
	done.Wait()
}

// A waiter comes before a later caller, even if the resource is free for a moment.
func TestWhoAcquiresComesBehindThoseWhoWait(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `SELECT fence.claim_source('postgres')`)
	const enter = `SELECT taken FROM fence.take_lease('r', 'of ' || $1, 60000000, sha256(convert_to($1, 'UTF8')), '', true, $1, $2)`
	held := w.take(t, "r", ttl)
	for _, waiter := range []string{"first", "second"} {
		if ask[bool](t, w, enter, waiter, time.Hour) {
			t.Fatal("two holders")
		}
	}
	if err := w.Release(t.Context(), held.Ref()); err != nil {
		t.Fatal(err)
	}
	if ask[bool](t, w, enter, "second", time.Hour) {
		t.Error("the second came before the first")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	outcome := make(chan error, 1)
	go func() {
		_, err := w.Acquire(ctx, leasing.UntilDone, leasing.Request{Resource: "r", TTL: ttl})
		outcome <- err
	}()
	until(t, "it stands behind the two, or has the lease", func() bool { return w.waiters(t) == 3 || len(outcome) == 1 })
	cancel()
	if err := <-outcome; !errors.Is(err, leasing.ErrHeld) && !errors.Is(err, context.Canceled) {
		t.Errorf("who asks last: %v; want that it waited", err)
	}
	if !ask[bool](t, w, enter, "first", time.Hour) {
		t.Error("the first does not get the resource")
	}
}

// A dead process delays the others only briefly.
func TestAPlaceThatNobodyKeepsIsLost(t *testing.T) {
	t.Parallel()
	w := setup(t)
	held := w.take(t, "r", ttl)
	w.exec(t, `SELECT fence.take_lease('r', 'x', 60000000, sha256('x'), '', true, 'gone', '1 ms')`)
	if err := w.Release(t.Context(), held.Ref()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Acquire(t.Context(), leasing.UntilDone, leasing.Request{Resource: "r", TTL: ttl}); err != nil {
		t.Error(err)
	}
}

// NOTIFY takes a server-wide lock at COMMIT.
func TestOnlyTheFirstWhoWaitsIsNotified(t *testing.T) {
	t.Parallel()
	w := setup(t)
	conn, err := pgx.Connect(t.Context(), w.pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	for _, waiter := range []string{"first", "second"} {
		if _, err := conn.Exec(t.Context(), "LISTEN fencegate_lease_"+waiter+"; LISTEN last"); err != nil {
			t.Fatal(err)
		}
	}
	for _, waited := range []bool{false, true} {
		lease := w.take(t, "r", ttl)
		if waited {
			for _, waiter := range []string{"first", "second"} {
				w.exec(t, `SELECT fence.take_lease('r', 'x', 60000000, sha256('x'), '', true, $1, '1 h')`, waiter)
			}
		}
		if err := w.Release(t.Context(), lease.Ref()); err != nil {
			t.Fatal(err)
		}
		w.exec(t, `NOTIFY last`)
		var said []string
		for len(said) == 0 || said[len(said)-1] != "last" {
			n, err := conn.WaitForNotification(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			said = append(said, n.Channel)
		}
		switch {
		case !waited && len(said) != 1:
			t.Errorf("nobody waits, and %v was said", said)
		case waited && (len(said) != 2 || said[0] != "fencegate_lease_first"):
			t.Errorf("two wait, and %v was said; want the first", said)
		}
	}
}
