package objects

import (
	"slices"
	"sync"
	"time"
)

// turns groups callers that arrive while others work: the first of them works for all. A caller never waits for others
// to join. Safe for concurrent use.
type turns[T any] struct {
	atOnce   int // groups that work at once
	perGroup int // callers per group, at most

	// Callers that have waited for patience work beside the running groups, while these are fewer than most. This
	// affects when a group begins, never its result. 0: all wait.
	patience time.Duration
	most     int

	mu      sync.Mutex
	working int // groups
	waiting []waiter[T]
	watched bool // a timer will call hurry
}

type waiter[T any] struct {
	one   T
	since time.Time
	turn  chan []waiter[T] // the group to lead, itself first; nil: another caller has worked for it
}

// take returns when work was called with a group that contains one, by this caller or by another one, after take was
// called.
func (t *turns[T]) take(one T, work func(group []T)) {
	t.mu.Lock()
	if t.working < t.atOnce {
		t.working++
		t.mu.Unlock()
		defer t.pass()
		work([]T{one})
		return
	}
	w := waiter[T]{one: one, turn: make(chan []waiter[T], 1)}
	if t.patience > 0 {
		w.since = time.Now()
		t.watch(t.patience)
	}
	t.waiting = append(t.waiting, w)
	t.mu.Unlock()
	if led := <-w.turn; led != nil {
		t.lead(led, work)
	}
}

func (t *turns[T]) lead(led []waiter[T], work func(group []T)) {
	defer t.pass()
	defer func() {
		for _, other := range led[1:] {
			other.turn <- nil
		}
	}()
	group := make([]T, len(led))
	for i, w := range led {
		group[i] = w.one
	}
	work(group)
}

// pass starts the next group of waiting callers.
func (t *turns[T]) pass() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.working--
	if t.working < t.atOnce {
		t.begin()
	}
}

// begin starts a group of waiting callers, if any. The caller holds mu.
func (t *turns[T]) begin() {
	n := min(len(t.waiting), t.perGroup)
	if n == 0 {
		return
	}
	led := slices.Clone(t.waiting[:n])
	t.waiting = slices.Delete(t.waiting, 0, n)
	t.working++
	led[0].turn <- led
}

// watch schedules hurry. The caller holds mu.
func (t *turns[T]) watch(after time.Duration) {
	if !t.watched {
		t.watched = true
		time.AfterFunc(after, t.hurry)
	}
}

// hurry starts a group beside the running ones once callers have waited for patience.
func (t *turns[T]) hurry() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.watched = false
	if len(t.waiting) == 0 {
		return
	}
	left := t.patience - time.Since(t.waiting[0].since)
	if left <= 0 && t.working < t.most {
		t.begin()
		left = t.patience
	}
	if len(t.waiting) > 0 {
		t.watch(max(left, t.patience/2))
	}
}
