package fault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fencegate/fencegate/robustness/cluster"
	"github.com/fencegate/fencegate/robustness/history"
)

// Result is the result of a plan.
type Result struct {
	// Spans are the faults' durations, from the beginning to the end of the healing. What begins with the fault's name.
	// Client is the stopped client, -1 for all, and NoClient if none was stopped.
	Spans  []history.Span
	Counts map[string]int // how often each fault ran
	// Switches are the failovers, each with its losses.
	Switches []cluster.Switch
	Undone   []*Error // faults that could not be done, with the reasons
	Found    []*Error // parts that did not recover in time, and damage that the product reported
}

// Error is what a fault found, or why it could not be done.
type Error struct {
	Event Event
	Span  history.Span // of the fault, up to the error
	Err   error
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Event, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// NoClient is the client of a span that affected only servers, relays or clocks.
const NoClient = -2

// Play plays the plan, each event at its time, and returns when all of it is healed. If ctx ends, everything is healed
// at once, and later events are omitted.
func Play(ctx context.Context, plan []Event, w World, scene Scene) Result {
	r := &record{begin: history.Now(), out: scene.Log, result: Result{Counts: map[string]int{}}}
	for _, n := range w.Nodes() {
		if err := n.Keep(); err != nil {
			r.result.Undone = append(r.result.Undone, &Error{
				Event: Event{Fault: "redis-older"}, Err: fmt.Errorf("%w: a copy of the data of %s: %w", ErrNotDone, n.ID(), err),
			})
		}
	}
	taken := newClaims()
	var running sync.WaitGroup
	begin := time.Now()
	for _, e := range plan {
		if !wait(ctx, e.At-time.Since(begin)) {
			break
		}
		running.Go(func() {
			random := rand.New(rand.NewPCG(e.Seed, uint64(scene.Round)))
			runOne(ctx, &Stage{World: w, Rand: random, For: e.For, Event: e, Scene: scene, claims: taken, record: r})
		})
	}
	running.Wait()
	return r.result
}

func runOne(ctx context.Context, s *Stage) {
	name := s.Event.Fault
	f, ok := byName()[name]
	if !ok {
		s.record.end(s.Event, 0, fmt.Errorf("%w: no fault is called %q", ErrNotDone, name))
		return
	}
	from := history.Now()
	s.record.logf("%s for %v", name, s.For)
	s.record.end(s.Event, from, f.Run(ctx, s))
}

// record collects the results while a plan is played.
type record struct {
	begin int64
	out   io.Writer

	mu     sync.Mutex
	result Result
}

func (r *record) logf(format string, args ...any) {
	if r.out == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	at := time.Duration(history.Now() - r.begin).Round(time.Millisecond)
	_, _ = fmt.Fprintf(r.out, "%8v %s\n", at, fmt.Sprintf(format, args...))
}

func (r *record) span(span history.Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Spans = append(r.result.Spans, span)
}

func (r *record) switched(done cluster.Switch) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Switches = append(r.result.Switches, done)
}

func (r *record) end(e Event, from int64, err error) {
	span := history.Span{Client: NoClient, What: e.Fault, From: from, To: history.Now()}
	r.span(span)
	if err != nil {
		r.logf("%s: %v", e.Fault, err)
	} else {
		r.logf("%s is over after %v", e.Fault, time.Duration(span.To-from).Round(ms))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.result.Counts[e.Fault]++
	case errors.Is(err, ErrNotHealed), errors.Is(err, ErrWrong):
		r.result.Counts[e.Fault]++
		r.result.Found = append(r.result.Found, &Error{e, span, err})
	default:
		r.result.Undone = append(r.result.Undone, &Error{e, span, err})
	}
}
