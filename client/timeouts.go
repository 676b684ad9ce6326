package client

import (
	"context"
	"errors"
	"net"
	"net/http/httptrace"
	"os"
	"sync/atomic"
	"time"
)

// patience is how long a gateway may take before the next one is tried, in addition to the request's wait. A context
// that ends soon shortens it: see [request.bound].
const patience = 5 * time.Second

// bound limits the time of one of the gateways that are left, for a request that may be sent twice. Each may take the
// rest of the request's wait, and then its [share]. The last gateway has all of ctx. So has each of them if ctx ends
// before the wait, because a gateway that lets the request wait is not late. A request that may not be sent twice has all
// of ctx at the gateway that it is sent to: it could not go on to the next one.
func (r request) bound(ctx context.Context, left int) (context.Context, context.CancelFunc) {
	if left == 1 || !r.again {
		return context.WithCancel(ctx)
	}
	from := time.Now()
	if until := r.until(); until.After(from) {
		from = until
	}
	return context.WithDeadline(ctx, from.Add(share(ctx, from, left)))
}

// share is an equal share of what ctx leaves after from, up to [patience].
func share(ctx context.Context, from time.Time, left int) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return min(patience, end.Sub(from)/time.Duration(left))
	}
	return patience
}

// connecting limits how long a request waits for a connection. A transport that does not report its connections has no
// limit.
type connecting struct {
	begun, made, late atomic.Bool
}

// within ends the request's context if there is no connection after d.
func (c *connecting) within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	over := time.AfterFunc(d, func() {
		if c.begun.Load() && !c.made.Load() {
			c.late.Store(true)
			cancel()
		}
	})
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { c.begun.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { c.made.Store(true) },
	})
	return ctx, func() { over.Stop(); cancel() }
}

// unsent returns the error of a request that was not sent because no connection was made in time; else err.
func (c *connecting) unsent(err error) error {
	lost, ok := errors.AsType[*UnreachableError](err)
	if !ok || !c.late.Load() || c.made.Load() {
		return err
	}
	return &UnreachableError{URL: lost.URL, Cause: &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}}
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
