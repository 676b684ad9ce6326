package lock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/lock"
)

func TestLocksThatNeverExpireAreFound(t *testing.T) {
	t.Parallel()
	backends(t, []int{3}, func(t *testing.T, cfg lock.Config) {
		l := started(t, cfg)
		release(t, acquire(t, l, "fine"))
		for _, name := range []string{"a", "b", "leaky"} {
			acquire(t, l, name, lock.WithHolder("worker-a"))
		}
		prefix := cfg.KeyPrefix
		if prefix == "" {
			prefix = lock.DefaultKeyPrefix
		}
		c := client(t, cfg.Nodes[0].Addr)
		eventually(t, 20*time.Second, "the lock is there too, and does not expire", func() bool { // a quorum has it
			return c.Persist(t.Context(), prefix+":lock:leaky").Val()
		})
		leaks, err := l.Leaks(t.Context())
		must(t, err)
		if len(leaks) != 1 || leaks[0] != (lock.Leak{Node: "node-1", Resource: "leaky", Holder: "worker-a"}) {
			t.Fatalf("leaks: %+v", leaks)
		}
		must(t, patiently(t.Context(), func() error {
			_, err := l.ForceRelease(t.Context(), "leaky")
			return err
		}))
		release(t, acquire(t, l, "leaky"))
	})
}

func TestForceReleaseRaisesTheFencePastTheHolder(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	fences := &register{}
	cfg.Armer = fences
	l := started(t, cfg)
	held := acquire(t, l, "r")
	var forced fence.Token
	must(t, patiently(t.Context(), func() (err error) {
		forced, err = l.ForceRelease(t.Context(), "r")
		return err
	}))
	fences.mu.Lock()
	recorded := fences.tokens["r"]
	fences.mu.Unlock()
	if forced <= held.Ref().Token || recorded != forced {
		t.Errorf("forced %d, recorded %d, held %d", forced, recorded, held.Ref().Token)
	}
	if err := held.Extend(t.Context(), lock.DefaultTTL); !errors.Is(err, lock.ErrLost) {
		t.Errorf("extend: %v", err)
	}
	if _, err := l.ForceRelease(t.Context(), ""); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("got %v", err)
	}
}
