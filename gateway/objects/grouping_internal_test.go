package objects

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/testenv"
)

// atWork is turns whose groups report that they began, and end on demand.
type atWork struct {
	*turns[int]

	began chan []int
	end   chan struct{}
	all   sync.WaitGroup
}

func newAtWork(t *turns[int]) *atWork {
	return &atWork{turns: t, began: make(chan []int, 100), end: make(chan struct{})}
}

func (a *atWork) comes(n int) {
	a.all.Go(func() {
		a.take(n, func(group []int) {
			a.began <- group
			<-a.end
		})
	})
}

// waits returns once n callers wait.
func (a *atWork) waits(t *testing.T, n int) {
	t.Helper()
	testenv.Eventually(t, fmt.Sprintf("%d wait", n), func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(a.waiting) != n {
			return fmt.Errorf("%d wait", len(a.waiting))
		}
		return nil
	})
}

func TestWhoComesWhileOthersAreAtWorkGoesTogether(t *testing.T) {
	t.Parallel()
	a := newAtWork(&turns[int]{atOnce: 2, perGroup: 3})
	a.comes(1)
	a.comes(2)
	<-a.began
	<-a.began
	for n := range 5 {
		a.comes(10 + n)
	}
	a.waits(t, 5)
	a.end <- struct{}{}
	if group := <-a.began; len(group) != 3 {
		t.Errorf("together went %v", group)
	}
	a.end <- struct{}{}
	if group := <-a.began; len(group) != 2 {
		t.Errorf("then went %v", group)
	}
	close(a.end)
	a.all.Wait()
	if a.working != 0 || len(a.waiting) != 0 {
		t.Errorf("%d are at work, %d wait", a.working, len(a.waiting))
	}
	a.comes(3) // alone again
	if group := <-a.began; len(group) != 1 {
		t.Errorf("alone went %v", group)
	}
	a.all.Wait()
}

// Work that hangs delays others at most for patience, and no more than most groups work at once.
func TestNobodyWaitsLongBehindWorkThatHangs(t *testing.T) {
	t.Parallel()
	a := newAtWork(&turns[int]{atOnce: 1, perGroup: 10, patience: time.Millisecond, most: 3})
	for n := range 3 { // each starts although those before it hang
		a.comes(n)
		<-a.began
	}
	a.comes(3)
	a.waits(t, 1)
	a.mu.Lock()
	a.waiting[0].since = time.Time{} // its patience is over
	a.mu.Unlock()
	a.hurry()
	if len(a.began) > 0 {
		t.Errorf("%v went, too", <-a.began)
	}
	close(a.end)
	a.all.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.working != 0 || len(a.waiting) != 0 {
		t.Errorf("%d are at work, %d wait", a.working, len(a.waiting))
	}
}

// A panic in the work of a group ends only its leader's call.
func TestWhoPanicsLeavesTheOthersTheirTurn(t *testing.T) {
	t.Parallel()
	a := newAtWork(&turns[int]{atOnce: 1, perGroup: 10})
	a.comes(1)
	<-a.began
	for n := range 2 {
		a.all.Go(func() {
			defer func() { _ = recover() }()
			a.take(10+n, func([]int) { panic("test") })
		})
	}
	a.waits(t, 2)
	close(a.end)
	a.all.Wait()
	a.comes(2)
	a.all.Wait()
}
