package objects

import (
	"slices"
	"sync"
	"time"
)

// turns lets callers that come while others are at work go together: the first of
// them works for all. Nobody waits for company. Safe for concurrent use.
type turns[T any] struct {
	atOnce   int // groups at work at a time
	together int // callers in a group, at most

	// Who has waited for patience goes beside those that are at work, as long as these
	// are fewer than most: it decides how soon a group begins, never what it finds. 0:
	// all wait.
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
	turn  chan []waiter[T] // to lead these, itself the first; nil: another has done so
}

// take returns when work was called with a group that one belongs to, by this caller
// or by another one, after take was called.
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

// pass gives the turn to those who have come meanwhile.
func (t *turns[T]) pass() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.working--
	if t.working < t.atOnce {
		t.begin()
	}
}

// begin lets those who wait go, if there are any. It is under mu.
func (t *turns[T]) begin() {
	n := min(len(t.waiting), t.together)
	if n == 0 {
		return
	}
	led := slices.Clone(t.waiting[:n])
	t.waiting = slices.Delete(t.waiting, 0, n)
	t.working++
	led[0].turn <- led
}

// watch has hurry called. It is under mu.
func (t *turns[T]) watch(after time.Duration) {
	if !t.watched {
		t.watched = true
		time.AfterFunc(after, t.hurry)
	}
}

// hurry lets those who have waited for long go beside those that are at work.
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
