package lock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/lock"
)

// A lock's TTL runs from some moment after the first message was sent, when its node did the work. Late answers do
// not make a lease longer.
func TestALeaseCountsFromBeforeItsFirstMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const ttl, late = time.Minute, 20 * time.Millisecond
		cfg, nodes := inMemory(t, 1)
		l := started(t, cfg)
		release(t, acquire(t, l, "r")) // connects
		nodes[0].Requests.Delay(func() time.Duration { return late })
		nodes[0].Replies.Delay(func() time.Duration { return late })
		validity := l.Validity(lock.WithTTL(ttl))
		sent := time.Now()
		lease, err := l.TryAcquire(t.Context(), "r", lock.WithTTL(ttl))
		must(t, err)
		if took := time.Since(sent); took != 2*late {
			t.Errorf("acquired in %v", took)
		}
		if longer := lease.Deadline().Time().Sub(sent.Add(validity)); longer != 0 {
			t.Errorf("acquired for %v too long", longer)
		}
		sent = time.Now()
		must(t, lease.Extend(t.Context(), ttl))
		if longer := lease.Deadline().Time().Sub(sent.Add(validity)); longer != 0 {
			t.Errorf("extended for %v too long", longer)
		}
		valid, err := l.Extend(t.Context(), lease.Ref(), ttl)
		must(t, err)
		if longer := valid.Left() - (validity - 2*late); longer != 0 {
			t.Errorf("extended by reference for %v too long", longer)
		}
		release(t, lease)
	})
}
