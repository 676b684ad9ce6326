package lock_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
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
		var again atomic.Int32
		for i := range 128 {
			callers.Go(func() {
				for range 10 {
					lease, err := l.TryAcquire(t.Context(), fmt.Sprint("own-", i))
					switch {
					case errors.Is(err, lock.ErrNoQuorum): // a round has a second, which may be too short on a busy machine
						return
					case err != nil:
						t.Errorf("caller %d: %v", i, err)
						return
					}
					again.Add(1)
					lease.ReleaseAsync()
				}
			})
		}
		callers.Wait()
		if again.Load() < 128 {
			t.Errorf("only %d acquisitions came through", again.Load())
		}
	})
}
