package lock_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/fencegate/fencegate/lock"
)

// A release that nobody waits for is on its way to each node before the next
// acquire of the same resource can be, so the next one never finds it held.
func TestAnAcquireComesBehindItsProcessesReleases(t *testing.T) {
	t.Parallel()
	backends(t, []int{1, 5}, func(t *testing.T, cfg lock.Config) {
		l := started(t, cfg)
		var callers sync.WaitGroup
		for i := range 128 {
			callers.Go(func() {
				for range 10 {
					lease, err := l.TryAcquire(t.Context(), fmt.Sprint("own-", i))
					if err != nil {
						t.Errorf("caller %d: %v", i, err)
						return
					}
					lease.ReleaseAsync()
				}
			})
		}
		callers.Wait()
	})
}
