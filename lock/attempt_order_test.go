package lock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/memredis"
	"github.com/fencegate/fencegate/lock"
)

func TestProcessesGetTheResourceInTheirOrder(t *testing.T) {
	t.Parallel()
	for name, down := range map[string]bool{"at its home": false, "at another, while its home is down": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				outlastDials(t)
				cfg, nodes := inMemory(t, 3)
				holder := started(t, cfg)
				home := holder.Home("r")
				if down {
					nodes[home].Stop()
					home = (home + 1) % 3
				}
				inOrder(t, cfg, nodes[home], holder)
			})
		})
	}
}

// inOrder makes callers of several processes wait, one after the other, for a held resource, and checks the order in
// which they get it.
func inOrder(t *testing.T, cfg lock.Config, home *memredis.Node, holder *lock.Locker) {
	t.Helper()
	const processes = 8
	lease := leased(t, holder, "r")
	order := make(chan int, processes)
	for i := range processes {
		l := holder
		if i != processes/2 { // the holder's own process is one of them
			l = locker(t, cfg)
		}
		go func() {
			mine, err := l.Acquire(t.Context(), "r")
			if err != nil {
				t.Error(err)
				return
			}
			order <- i
			check(t, mine.Release(t.Context()))
		}()
		synctest.Wait()
		if n := len(queue(t, home, "r")); n != i+1 {
			t.Fatalf("%d stand in the queue", n)
		}
		if ins, err := leasing.One(holder.Inspect(t.Context(), "r")); err != nil || ins.Waiters != i+1 {
			t.Errorf("%d wait, says the inspection; want %d; %v", ins.Waiters, i+1, err)
		}
	}
	begun := time.Now()
	must(t, lease.Release(t.Context()))
	for want := range processes {
		if i := <-order; i != want {
			t.Errorf("process %d got it as number %d", i, want)
		}
	}
	if took := time.Since(begun); took > processes*handover {
		t.Errorf("it took %v", took)
	}
}
