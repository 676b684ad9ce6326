package lock_test

import (
	"testing"
	"time"

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
	// delayed delays an answer, and returns a moment after the first message was sent.
	delayed := func(do func() error) time.Time {
		before := replies.waiting.Load()
		replies.close()
		done := make(chan error, 1)
		go func() { done <- do() }()
		eventually(t, 10*time.Second, "the answer is on its way", func() bool { return replies.waiting.Load() > before })
		sent := time.Now()
		<-time.After(late)
		replies.open()
		must(t, <-done)
		return sent
	}
	release(t, acquire(t, l, "r")) // connects
	validity := l.Validity(lock.WithTTL(ttl))
	var lease *lock.Lease
	sent := delayed(func() (err error) {
		lease, err = l.TryAcquire(t.Context(), "r", lock.WithTTL(ttl))
		return err
	})
	if longer := lease.Deadline().Sub(sent.Add(validity)); longer > 0 {
		t.Errorf("acquired for %v too long", longer)
	}
	sent = delayed(func() error { return lease.Extend(t.Context(), ttl) })
	if longer := lease.Deadline().Sub(sent.Add(validity)); longer > 0 {
		t.Errorf("extended for %v too long", longer)
	}
	var valid time.Duration
	sent = delayed(func() (err error) {
		valid, err = l.Extend(t.Context(), lease.Ref(), ttl)
		return err
	})
	if longer := time.Until(sent.Add(validity)); valid > longer+late/2 {
		t.Errorf("extended by reference for %v too long", valid-longer)
	}
	release(t, lease)
}
