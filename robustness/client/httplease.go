package client

import (
	"context"
	"errors"
	"time"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/robustness/history"
	"github.com/fencegate/fencegate/wire"
)

// httpLease is a lease by the HTTP API: the part of a holding that neither reads nor writes. Surfaces embed it.
type httpLease struct {
	env     *env
	lease   client.Lease
	grant   fence.Grant
	ttl     time.Duration
	until   client.Deadline
	gateway int // the gateway that gave it
}

// lease acquires by the HTTP API of any gateway. Its errors are those of apiFailure.
func (e *env) lease(ctx context.Context, a ask) (*httpLease, error) {
	r := client.AcquireRequest{Resource: a.resource, TTL: a.ttl, Holder: a.id}
	if end, ok := ctx.Deadline(); ok && !a.try {
		r.Wait = max(time.Until(end)-time.Second, time.Millisecond).Truncate(time.Millisecond)
	}
	i := e.gateway()
	lease, err := e.apis[i].Acquire(ctx, r)
	if err != nil {
		return nil, apiFailure(err)
	}
	grant, err := lease.Grant()
	if err != nil {
		return nil, err
	}
	return &httpLease{env: e, lease: lease, grant: grant, ttl: a.ttl, until: lease.Deadline, gateway: i}, nil
}

func (l *httpLease) token() int64        { return int64(l.lease.Token) }
func (l *httpLease) deadline() time.Time { return l.until.Time() }

// renew uses any gateway, and so does release: a handle is valid on all.
func (l *httpLease) renew(ctx context.Context) error {
	until, err := l.env.apis[l.env.gateway()].Renew(ctx, l.lease.Handle, l.ttl)
	if err != nil {
		return apiFailure(err)
	}
	l.until = until
	return nil
}

func (l *httpLease) release(ctx context.Context) error { return l.giveBack(ctx) }

func (l *httpLease) giveBack(ctx context.Context) error {
	return apiFailure(l.env.apis[l.env.gateway()].Release(ctx, l.lease.Handle))
}

func (l *httpLease) forget() {}

// apiFailure classifies an answer of the HTTP API by its code (docs/http-api.md). A missing answer is Unknown, as
// documented for the client.
func apiFailure(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, fence.ErrUnknown) {
		return &failure{outcome: history.Unknown, code: "unreachable", err: err}
	}
	p, ok := errors.AsType[*client.Problem](err)
	if !ok {
		return &failure{outcome: history.Unknown, err: err}
	}
	f := &failure{outcome: history.Refused, code: p.Code, holder: p.Holder, err: err}
	switch p.Code {
	case wire.CodeUnknown, wire.CodeInternal, "":
		f.outcome = history.Unknown
	case wire.CodeUnavailable, wire.CodeSQLError, wire.CodeInvalid, wire.CodeTooLarge, wire.CodeNotFound,
		wire.CodeMethodNotAllowed, wire.CodeNotImplemented, wire.CodeUnauthorized:
		f.outcome = history.Failed
	}
	return f
}
