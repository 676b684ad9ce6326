package lock_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
)

// A release without waiting reaches each node before the next acquire of the same resource, so that one never finds
// it held.
func TestAnAcquireComesBehindItsProcessesReleases(t *testing.T) {
	t.Parallel()
	groups(t, []int{1, 5}, func(t *testing.T, cfg lock.Config, nodes []*memredis.Node) {
		l := started(t, cfg)
		slowly(nodes, 10*time.Millisecond)
		var callers sync.WaitGroup
		for i := range 64 {
			callers.Go(func() {
				resource := fmt.Sprint("own-", i)
				var last fence.Token
				for range 5 {
					lease, err := l.TryAcquire(t.Context(), resource)
					if err != nil {
						t.Errorf("acquire %s: %v", resource, err)
						return
					}
					if got := token(t, lease); got <= last {
						t.Errorf("%s: token %d after %d", resource, got, last)
					} else {
						last = got
					}
					lease.ReleaseAsync()
					lease.ReleaseAsync()
					if _, err := lease.Grant(); !errors.Is(err, lock.ErrReleased) {
						t.Errorf("grant: %v", err)
					}
				}
			})
		}
		callers.Wait()
		time.Sleep(time.Second)
		unlocked(t, l, "own-0")
	})
}
