// Package recent shares an answer among callers for a while, so that frequent callers cost one question.
package recent

import (
	"context"
	"time"
)

// Answer is the last answer to a question. One caller asks at a time; the others wait for its answer, without a mutex,
// which would stop a fake clock.
type Answer[T any] struct {
	turn chan struct{}
	at   time.Time
	last T
}

// New returns an Answer that has not been asked for.
func New[T any]() *Answer[T] { return &Answer[T]{turn: make(chan struct{}, 1)} }

// Get returns the last answer if it is younger than lasts, or asks, for at most timeout.
func (a *Answer[T]) Get(lasts, timeout time.Duration, ask func(context.Context) T) T {
	a.turn <- struct{}{}
	defer func() { <-a.turn }()
	if a.at.IsZero() || time.Since(a.at) >= lasts {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		a.last, a.at = ask(ctx), time.Now()
	}
	return a.last
}
