package lock_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// turn is one process's turn.
type turn struct {
	process       int
	got, released time.Time // when it had the lease, and when it began to release it
}

// inOrder makes callers of several processes wait, one after the other, for a held resource, and checks the order in
// which they get it.
func inOrder(t *testing.T, cfg lock.Config, home int, holder *lock.Locker) {
	t.Helper()
	var err error
	for range 10 {
		if err = askInOrder(t, cfg, home, holder); err == nil {
			return
		}
		t.Log(err)
	}
	t.Error(err)
}

// askInOrder returns an error if a process was overtaken that had been called and did nothing for so long that others
// may try: the machine was too busy.
func askInOrder(t *testing.T, cfg lock.Config, home int, holder *lock.Locker) error {
	t.Helper()
	const processes = 8
	eventually(t, 20*time.Second, "the queue is empty", func() bool { return queued(t, cfg, home, "r") == 0 })
	lease := acquire(t, holder, "r", lock.WithTTL(time.Minute))
	order := make(chan turn, processes)
	var done sync.WaitGroup
	for i := range processes {
		l := locker(t, cfg)
		done.Go(func() {
			mine, err := l.Acquire(t.Context(), "r", lock.WithTTL(time.Minute))
			if err != nil {
				t.Error(err)
				return
			}
			now := time.Now()
			order <- turn{i, now, time.Now()}
			if err := mine.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
		eventually(t, 20*time.Second, "it stands in the queue", func() bool { return queued(t, cfg, home, "r") == int64(i+1) })
		if ins, err := holder.Inspect(t.Context(), "r"); err == nil && ins.Waiters != i+1 {
			t.Errorf("%d wait, says the inspection; want %d", ins.Waiters, i+1)
		}
	}
	free := time.Now()
	release(t, lease)
	done.Wait()
	close(order)
	want := 0
	for turn := range order {
		waited := turn.got.Sub(free)
		switch {
		case turn.process == want:
		case waited < lock.Grace:
			t.Errorf("process %d got it as number %d, %v after it was free", turn.process, want, waited)
			return nil
		default:
			return fmt.Errorf("process %d got it as number %d, %v after it was free", turn.process, want, waited)
		}
		free = turn.released
		want++
	}
	return nil
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
