package lock

import (
	"context"
	"errors"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/internal/node"
)

// Metrics receives events for histograms and counters. Its methods are called concurrently and must not block. See
// [Tracer] for single steps.
type Metrics interface {
	// Metrics are the events of every source. The causes of failures are "held", "no_quorum", "lost", "invalid", "arm",
	// "context" and "other".
	leasing.Metrics

	// Ended reports that a [Lease] is over, and the time since its acquisition. lost: it reached its deadline or was
	// found gone; otherwise it was released.
	Ended(held time.Duration, lost bool)
	// Slow reports that a step ended at the node timeout without this node's answer. A node that is merely slower
	// than the quorum delays nothing and is not reported.
	Slow(node string)
}

type noMetrics struct{}

func (noMetrics) Acquired(time.Duration, int) {}

func (noMetrics) Failed(string, string) {}

func (noMetrics) Ended(time.Duration, bool) {}

func (noMetrics) Renewed() {}

func (noMetrics) Slow(string) {}

// cause is the label value of an error.
func cause(err error) string {
	switch {
	case errors.Is(err, fence.ErrInvalid):
		return "invalid"
	case errors.Is(err, ErrHeld):
		return "held"
	case errors.Is(err, ErrNoQuorum):
		return "no_quorum"
	case errors.Is(err, ErrLost):
		return "lost"
	case errors.Is(err, fence.ErrUnknown), errors.Is(err, fence.ErrNotRaised), errors.Is(err, fence.ErrUndrained):
		return "arm"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "context"
	}
	return "other"
}

// Tracer receives the steps of each operation, as spans. Its methods are called concurrently and must not block. With
// OpenTelemetry:
//
//	func (t tracer) Begin(ctx context.Context, s lock.Step) (context.Context, func(error)) {
//		ctx, span := t.Start(ctx, "lock."+s.Name, trace.WithAttributes(
//			attribute.String("resource", s.Resource), attribute.String("node", s.Node)))
//		return ctx, func(err error) { span.RecordError(err); span.End() }
//	}
type Tracer interface {
	// Begin is called when a step begins. Steps inside it, and the Armer, get the returned context. end is called
	// once, with the step's error: nil if it succeeded.
	Begin(ctx context.Context, step Step) (inside context.Context, end func(err error))
}

// Step is one step of an operation.
type Step struct {
	// Name is "acquire", which contains any number of "wait" (for the holder) and "attempt"; "take" (phase 1),
	// "confirm" (phase 2) and "arm" in an attempt; "extend"; or "release", which contains "end" of the grant. take,
	// confirm, extend and release contain a "node" for each node. The step of a node that answers late ends after the
	// step around it. Its error is also nil if the node refused: the lock was held, or lost.
	Name     string
	Resource string
	Node     string // of a "node"
}

func endNothing(error) {}

// begin calls the tracer, if there is one.
func (l *Locker) begin(ctx context.Context, name, resource string) (context.Context, func(error)) {
	if l.cfg.Tracer == nil {
		return ctx, endNothing
	}
	return l.cfg.Tracer.Begin(ctx, Step{Name: name, Resource: resource})
}

// traced gives the round's steps on the nodes a context, if they are traced.
func (r *round) traced(ctx context.Context) {
	if r.l.cfg.Tracer != nil {
		r.trace, r.ends = ctx, make([]func(error), len(r.l.nodes))
	}
}

// beginNode and endNode report the step on one node of a traced round.
func (r *round) beginNode(i int) {
	_, r.ends[i] = r.l.cfg.Tracer.Begin(r.trace, Step{Name: "node", Resource: r.resource, Node: r.l.nodes[i].Name})
}

func (r *round) endNode(rep node.Reply) {
	if rep.Node < len(r.ends) && r.ends[rep.Node] != nil {
		r.ends[rep.Node](rep.Err)
	}
}
