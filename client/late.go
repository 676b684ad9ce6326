package client

import (
	"context"
	"errors"
	"net"
	"time"
)

// patience is how long a gateway may take before the next one is tried, in addition to the request's wait. A context
// that ends soon shortens it: see [request.bound].
const patience = 5 * time.Second

// bound limits the time of one of the gateways that are left. Each may take the rest of the request's wait, and then
// an equal share of what ctx leaves, up to patience. The last gateway has all of ctx. So has each of them if ctx ends
// before the wait, because a gateway that lets the request wait is not late. The context does not shorten the patience
// of a request that may not be sent twice: it could not go on to the next gateway.
func (r request) bound(ctx context.Context, left int) (context.Context, context.CancelFunc) {
	if left == 1 {
		return context.WithCancel(ctx)
	}
	from, extra := time.Now(), patience
	if until := r.until(); until.After(from) {
		from = until
	}
	if end, ok := ctx.Deadline(); ok && r.again {
		extra = min(extra, end.Sub(from)/time.Duration(left))
	}
	return context.WithDeadline(ctx, from.Add(extra))
}

// late reports whether no answer arrived in time, rather than a connection being lost or the caller canceling.
func late(ctx context.Context, err error) bool {
	lost, ok := errors.AsType[*UnreachableError](err)
	return ok && (errors.Is(ctx.Err(), context.DeadlineExceeded) || lost.timedOut())
}

func (e *UnreachableError) timedOut() bool {
	timeout, ok := errors.AsType[net.Error](e.Cause)
	return ok && timeout.Timeout()
}
