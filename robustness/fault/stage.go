package fault

import (
	"context"
	"errors"
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
		if err == nil || !wait(ctx, 100*time.Millisecond) {
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

// stopped records that a client has not run since from.
func (s *Stage) stopped(client int, from int64) {
	s.record.span(history.Span{Client: client, What: s.Event.Fault, From: from, To: history.Now()})
}

// logf logs what a fault drew.
func (s *Stage) logf(format string, args ...any) {
	s.record.logf("%s: %s", s.Event.Fault, fmt.Sprintf(format, args...))
}

// part is what a fault affects.
type part interface{ ID() string }

// bare is a part that has nothing but its name.
type bare string

func (b bare) ID() string { return string(b) }

// with calls do with up to want of the parts that no other fault has in the aspect, for example "run" or "clock". Two
// that stop, start or hold the same part would heal each other. It waits until there is one.
func with[T part](ctx context.Context, s *Stage, of []T, aspect string, want int, do func(of []T) error) error {
	if len(of) == 0 {
		return fmt.Errorf("%w: the cluster has no such part", ErrNotDone)
	}
	of = slices.Clone(of)
	s.Rand.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
	names := make([]string, len(of))
	for i, p := range of {
		names[i] = p.ID() + "/" + aspect
	}
	got := s.claims.take(ctx, names, want)
	if len(got) == 0 { // ctx has ended
		return nil
	}
	var claimed []T
	var taken []string
	for _, i := range got {
		claimed, taken = append(claimed, of[i]), append(taken, names[i])
	}
	defer s.claims.release(taken)
	s.logf("%v", ids(claimed))
	return do(claimed)
}

// some is with usually one of the parts, sometimes several, sometimes all.
func some[T part](ctx context.Context, s *Stage, of []T, aspect string, do func(of []T) error) error {
	n := len(of)
	switch pick := s.Rand.IntN(20); {
	case pick < 12 || n < 2:
		n = 1
	case pick < 17:
		n = 1 + s.Rand.IntN(n)
	}
	return with(ctx, s, of, aspect, n, do)
}

func ids[T part](of []T) (all []string) {
	for _, p := range of {
		all = append(all, p.ID())
	}
	slices.Sort(all)
	return all
}

// each does something to all parts at once. What fails is an error of that sort.
func each[T part](of []T, sort error, do func(T) error) error {
	failed := make([]error, len(of))
	var all sync.WaitGroup
	for i, p := range of {
		all.Go(func() {
			if err := do(p); err != nil {
				failed[i] = fmt.Errorf("%w: %s: %w", sort, p.ID(), err)
			}
		})
	}
	all.Wait()
	return errors.Join(failed...)
}

// during begins something with all parts, and ends it after d.
func during[T part](ctx context.Context, of []T, d time.Duration, begin func(T) error, end func(context.Context, T) error) error {
	err := each(of, ErrNotDone, begin)
	wait(ctx, d)
	after, cancel := healing(ctx)
	defer cancel()
	return errors.Join(err, each(of, ErrNotHealed, func(p T) error { return end(after, p) }))
}

// freeze stops the processes for d.
func freeze[T Process](ctx context.Context, of []T, d time.Duration) error {
	return during(ctx, of, d, T.Freeze, func(_ context.Context, p T) error { return p.Thaw() })
}

// claims are the parts that faults have, each in an aspect.
type claims struct {
	mu    sync.Mutex
	taken map[string]bool
	freed chan struct{} // closed at the next release
}

func newClaims() *claims { return &claims{taken: map[string]bool{}, freed: make(chan struct{})} }

// take claims up to want of the free names, in order, and waits until there is one. It returns their indexes; none if
// ctx ended first.
func (c *claims) take(ctx context.Context, names []string, want int) (got []int) {
	for {
		c.mu.Lock()
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
