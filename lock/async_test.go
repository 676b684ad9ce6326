package lock_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/fencegate/fencegate/lock"
)

// A release without waiting reaches each node before the next acquire of the same resource, so that one never finds
// it held.
func TestAnAcquireComesBehindItsProcessesReleases(t *testing.T) {
	t.Parallel()
	backends(t, []int{1, 5}, func(t *testing.T, cfg lock.Config) {
		l := started(t, cfg)
		var callers sync.WaitGroup
		var alone sync.Mutex
		for i := range 128 {
			callers.Go(func() {
				if acquireAndRelease(t, l, fmt.Sprint("own-", i)) {
					return
				}
				alone.Lock()
				defer alone.Unlock()
				for try := 1; !acquireAndRelease(t, l, fmt.Sprint("own-", i, "-", try)); try++ {
				}
			})
		}
		callers.Wait()
	})
}

// acquireAndRelease acquires a resource ten times, each time behind a release without waiting. It returns false when a
// round, which has a second, was too short on a busy machine: some nodes may then hold the resource for a while.
func acquireAndRelease(t *testing.T, l *lock.Locker, resource string) bool {
	t.Helper()
	for range 10 {
		lease, err := l.TryAcquire(t.Context(), resource)
		if errors.Is(err, lock.ErrNoQuorum) && t.Context().Err() == nil {
			return false
		}
		if err != nil {
			t.Errorf("acquire %s: %v", resource, err)
			return true
		}
		lease.ReleaseAsync()
	}
	return true
}
