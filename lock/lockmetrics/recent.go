package lockmetrics

import (
	"context"
	"time"
)

// recent is an answer of the nodes that collections share for a while. One of them asks at a time; the others wait for
// its answer, without a mutex, which would stop a fake clock.
type recent[T any] struct {
	turn   chan struct{}
	at     time.Time
	answer T
}

func newRecent[T any]() recent[T] { return recent[T]{turn: make(chan struct{}, 1)} }

// get returns the last answer if it is younger than lasts, or asks, for at most timeout.
func (r *recent[T]) get(lasts, timeout time.Duration, ask func(context.Context) T) T {
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	if r.at.IsZero() || time.Since(r.at) >= lasts {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		r.answer, r.at = ask(ctx), time.Now()
	}
	return r.answer
}
