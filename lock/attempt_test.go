package lock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/lock"
)

// A lock's TTL runs from some moment after the first message was sent, when its node did the work. Late answers do
// not make a lease longer.
func TestALeaseCountsFromBeforeItsFirstMessage(t *testing.T) {
	t.Parallel()
	const ttl, late = time.Minute, 300 * time.Millisecond
	cfg, relays := relayed(t, 1)
	l := started(t, cfg)
	replies := &relays[0].replies
	var lease *lock.Lease // once it is acquired
	// delayed delays an answer, and returns a moment after the first message was sent.
	delayed := func(do func() error) (sent time.Time) {
		must(t, patiently(t.Context(), func() error {
			before := replies.waiting.Load()
			replies.close()
			done := make(chan error, 1)
			begun := time.Now()
			go func() { done <- do() }()
			eventually(t, 20*time.Second, "the answer is on its way", func() bool { return replies.waiting.Load() > before || len(done) > 0 })
			sent = time.Now()
			<-time.After(late)
			replies.open()
			err := <-done
			if lease != nil && err == nil && time.Since(begun) >= time.Second {
				return fmt.Errorf("%w: an extension may have begun a second round", lock.ErrNodeTimeout)
			}
			return err
		}))
		return sent
	}
	release(t, acquire(t, l, "r")) // connects
	validity := l.Validity(lock.WithTTL(ttl))
	var first *lock.Lease
	sent := delayed(func() (err error) {
		if first, err = l.TryAcquire(t.Context(), "r", lock.WithTTL(ttl)); err != nil {
			free(t, l, "r")
		}
		return err
	})
	lease = first
	if longer := lease.Deadline().Sub(sent.Add(validity)); longer > 0 {
		t.Errorf("acquired for %v too long", longer)
	}
	sent = delayed(func() error { return lease.Extend(t.Context(), ttl) })
	if longer := lease.Deadline().Sub(sent.Add(validity)); longer > 0 {
		t.Errorf("extended for %v too long", longer)
	}
	testenv.Paced(t, late, func(time.Duration) error {
		var valid time.Duration
		var returned time.Time
		sent = delayed(func() (err error) {
			valid, err = l.Extend(t.Context(), lease.Ref(), ttl)
			returned = time.Now()
			return err
		})
		if longer := sent.Add(validity).Sub(returned); valid > longer+late/2 { // or it returned late
			return fmt.Errorf("extended by reference for %v too long", valid-longer)
		}
		return nil
	})
	release(t, lease)
}
