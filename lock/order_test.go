package lock_test

import (
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// inOrder lets callers of several processes ask one after the other for what is
// held, and looks in which order they get it.
func inOrder(t *testing.T, cfg lock.Config, home int, holder *lock.Locker) {
	t.Helper()
	const processes = 8
	lease := acquire(t, holder, "r", lock.WithTTL(time.Minute))
	order := make(chan int, processes)
	var done sync.WaitGroup
	for i := range processes {
		l := locker(t, cfg)
		done.Go(func() {
			mine, err := l.Acquire(t.Context(), "r", lock.WithTTL(time.Minute))
			if err != nil {
				t.Error(err)
				return
			}
			order <- i
			if err := mine.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
		eventually(t, 20*time.Second, "it stands in the queue", func() bool { return queued(t, cfg, home, "r") == int64(i+1) })
		if ins, err := holder.Inspect(t.Context(), "r"); err == nil && ins.Waiters != i+1 {
			t.Errorf("%d wait, says the inspection; want %d", ins.Waiters, i+1)
		}
	}
	release(t, lease)
	done.Wait()
	close(order)
	want := 0
	for i := range order {
		if i != want {
			t.Errorf("process %d got it as number %d", i, want)
		}
		want++
	}
}

func TestProcessesGetTheResourceInTheirOrder(t *testing.T) {
	t.Parallel()
	cfg := shared(t, 3)
	holder := started(t, cfg)
	inOrder(t, cfg, holder.Home("r"), holder)
}

func TestProcessesKeepTheirOrderAtAnotherHome(t *testing.T) {
	t.Parallel()
	cfg, servers := own(t, 3, redisserver.Config{})
	holder := started(t, cfg)
	home := holder.Home("r")
	must(t, servers[home].Kill())
	inOrder(t, cfg, (home+1)%3, holder)
}
