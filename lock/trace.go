package lock

import "context"

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
	_, r.ends[i] = r.l.cfg.Tracer.Begin(r.trace, Step{Name: "node", Resource: r.resource, Node: r.l.nodes[i].name})
}

func (r *round) endNode(rep reply) {
	if rep.node < len(r.ends) && r.ends[rep.node] != nil {
		r.ends[rep.node](rep.err)
	}
}
