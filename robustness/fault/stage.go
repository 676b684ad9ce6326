package fault

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

// Stage is the context of a running fault.
type Stage struct {
	World

	Rand  *rand.Rand
	For   time.Duration // how long the fault should last
	Event Event
	Scene Scene

	claims *claims
	record *record
}

// Scene is the round in which faults are played.
type Scene struct {
	Round     int
	Resources []string
	Operator  *history.Writer // the operator's history; nil: not recorded
	Log       io.Writer       // gets a line for each beginning and end; nil: none
}

// patience bounds healing: a process that has to start, a session that has to answer.
const patience = 30 * time.Second

// healing returns a context for work that must be done although ctx has ended.
func healing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), patience)
}

// wait waits for d. It returns false if ctx ends first.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// until retries until ask returns no error.
func until(ctx context.Context, ask func(context.Context) error) error {
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if !wait(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// between draws a duration.
func (s *Stage) between(low, high time.Duration) time.Duration {
	return low + time.Duration(s.Rand.Int64N(int64(high-low)+1))
}

// odds is true in one of n cases.
func (s *Stage) odds(n int) bool { return s.Rand.IntN(n) == 0 }

// many draws how many of n are affected: usually one, sometimes several, sometimes all.
func (s *Stage) many(n int) int {
	switch pick := s.Rand.IntN(20); {
	case pick < 12 || n < 2:
		return 1
	case pick < 17:
		return 1 + s.Rand.IntN(n)
	default:
		return n
	}
}

// stopped records that a client has not run since from.
func (s *Stage) stopped(client int, from int64) {
	s.record.span(history.Span{Client: client, What: s.Event.Fault, From: from, To: history.Now()})
}

// logf logs what a fault drew.
func (s *Stage) logf(format string, args ...any) {
	s.record.logf("%s: %s", s.Event.Fault, fmt.Sprintf(format, args...))
}

// claims are the parts that faults have taken: two that stop, start or hold the same part would heal each other.
type claims struct {
	mu    sync.Mutex
	taken map[string]bool
	freed chan struct{} // closed at the next release
}

func newClaims() *claims { return &claims{taken: map[string]bool{}, freed: make(chan struct{})} }

// take claims up to want of the free names, in order, and waits until
// there is one. It returns their indexes; none if ctx ended first.
func (c *claims) take(ctx context.Context, names []string, want int) []int {
	for {
		c.mu.Lock()
		var got []int
		for i, name := range names {
			if len(got) < want && !c.taken[name] {
				c.taken[name] = true
				got = append(got, i)
			}
		}
		freed := c.freed
		c.mu.Unlock()
		if len(got) > 0 {
			return got
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *claims) release(names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		delete(c.taken, name)
	}
	close(c.freed)
	c.freed = make(chan struct{})
}

// claim draws up to want of the parts that no other fault has claimed in the aspect, for example "run" or "clock". The
// claim lasts until the returned function is called.
func claim[T any](ctx context.Context, s *Stage, of []T, name func(T) string, aspect string, want int) ([]T, func()) {
	of = slices.Clone(of)
	s.Rand.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
	names := make([]string, len(of))
	for i, one := range of {
		names[i] = name(one) + "/" + aspect
	}
	if len(of) == 0 {
		return nil, func() {}
	}
	var got []T
	var taken []string
	for _, i := range s.claims.take(ctx, names, want) {
		got, taken = append(got, of[i]), append(taken, names[i])
	}
	return got, func() { s.claims.release(taken) }
}

// one claims a part by its name.
func (s *Stage) one(ctx context.Context, name string) (release func(), ok bool) {
	got := s.claims.take(ctx, []string{name}, 1)
	return func() { s.claims.release([]string{name}) }, len(got) == 1
}
