package lock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock"
)

// A caller that waits behind others of its process gets an error with the holder, as they do.
func TestTheEndOfAWaitInLineNamesTheHolder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg, _ := inMemory(t, 3)
		leased(t, started(t, cfg), "r", lock.WithHolder("worker-a"))
		l := locker(t, cfg)
		first, giveUp := context.WithTimeout(t.Context(), 4*time.Second)
		defer giveUp()
		second, giveUpToo := context.WithTimeout(t.Context(), 2*time.Second)
		defer giveUpToo()
		ahead, behind := waiting(first, l, "r"), waiting(second, l, "r")
		time.Sleep(time.Millisecond)
		brief, giveUpAtOnce := context.WithTimeout(t.Context(), 50*time.Millisecond) // the first asks for it
		defer giveUpAtOnce()
		_, err := l.Acquire(brief, "r")
		if why, ok := errors.AsType[*leasing.HeldError](err); !ok || why.Holder != "worker-a" {
			t.Errorf("a brief wait: %v", err)
		}
		for after, got := range map[time.Duration]<-chan outcome{2 * time.Second: behind, 4 * time.Second: ahead} {
			end := <-got
			why, ok := errors.AsType[*leasing.HeldError](end.err)
			if !ok || why.Holder != "worker-a" || (lock.DefaultTTL-after-why.RetryAfter).Abs() > time.Millisecond { // as Redis counts
				t.Errorf("after %v: %v: %#v", after, end.err, why)
			}
			if end.after != after || !errors.Is(end.err, context.DeadlineExceeded) || !lock.Retryable(end.err) {
				t.Errorf("after %v instead of %v: %v", end.after, after, end.err)
			}
		}
	})
}
