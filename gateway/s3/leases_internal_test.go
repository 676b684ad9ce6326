package s3

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/gateway/objects"
)

// lock counts the questions about one lease, and needs two seconds for each answer.
type lock struct {
	end   time.Time
	err   error
	asked int
}

func (l *lock) ask(context.Context, string, fence.Token) (time.Duration, error) {
	l.asked++
	left := max(0, time.Until(l.end))
	time.Sleep(2 * time.Second)
	return left, l.err
}

// A lease is asked for once, and again when it would have ended. If it was renewed, its credentials go on.
func TestALeaseCountsAsHeldUntilTheEndThatTheLockNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &lock{end: time.Now().Add(30 * time.Second)}
		h := &leaseCache{ask: l.ask}
		p := objects.Proof{Resource: "r", Token: 5}
		checks := func(want bool, asked int) {
			t.Helper()
			if is, err := h.check(t.Context(), p); is != want || err != nil || l.asked != asked {
				t.Errorf("at %v of its end: held %t, %v; asked %d times; want %t, %d", time.Until(l.end), is, err, l.asked, want, asked)
			}
		}
		checks(true, 1)
		time.Sleep(time.Until(l.end) - 1)
		checks(true, 1)
		l.end = l.end.Add(time.Minute) // renewed
		time.Sleep(time.Nanosecond)
		checks(true, 2)
		time.Sleep(time.Until(l.end))
		checks(false, 3)
		checks(false, 4) // what is over is not remembered
		if is, err := h.check(t.Context(), objects.Proof{Resource: "r", Token: 6}); is || err != nil || l.asked != 5 {
			t.Errorf("another token: held %t, %v; asked %d times", is, err, l.asked)
		}
	})
}

// While the lock is away the fence decides. While it is not known whether a lease is over, nothing is decided.
func TestALeaseCountsAsHeldWhileTheLockIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &lock{end: time.Now().Add(30 * time.Second), err: fmt.Errorf("%w: no quorum", ErrLockAway)}
		h := &leaseCache{ask: l.ask}
		p := objects.Proof{Resource: "r", Token: 5}
		if is, err := h.check(t.Context(), p); !is || err != nil {
			t.Errorf("the lock is away: held %t, %v", is, err)
		}
		l.err = errors.New("PostgreSQL is away")
		time.Sleep(time.Minute)
		if is, err := h.check(t.Context(), p); is || !errors.Is(err, objects.ErrDatabaseAway) {
			t.Errorf("PostgreSQL is away: held %t, %v", is, err)
		}
	})
}

func TestTheCacheOfHeldLeasesIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &leaseCache{ask: func(context.Context, string, fence.Token) (time.Duration, error) { return time.Hour, nil }}
		for token := range 3 * maxLeases {
			if is, err := h.check(t.Context(), objects.Proof{Resource: "r", Token: fence.Token(token)}); !is || err != nil {
				t.Fatal(is, err)
			}
		}
		if n := len(h.until); n > maxLeases {
			t.Errorf("%d leases are remembered", n)
		}
	})
}
