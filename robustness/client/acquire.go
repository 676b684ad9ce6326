package client

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/client"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/pglock"
	"github.com/fencegate/fencegate/robustness/history"
	"github.com/fencegate/fencegate/wire"
)

// lease acquires by the HTTP API of any gateway: one lease, or those of several resources.
func (e *env) lease(ctx context.Context, a ask) (*term, error) {
	r := client.AcquireRequest{TTL: a.ttl, Holder: a.id, Wait: a.wait(ctx)}
	if len(a.resources) > 1 || e.dice.chance(4) {
		all, err := e.api().AcquireAll(ctx, a.resources, r)
		return e.term(a.ttl, err, all...)
	}
	r.Resource = a.resources[0]
	one, err := e.api().Acquire(ctx, r)
	return e.term(a.ttl, err, one)
}

// leaseAgain acquires with an Idempotency-Key of its own. It asks again at another gateway, or at the balancer: if an
// answer is lost, if it does not wait for it, and to renew the lease.
func (e *env) leaseAgain(ctx context.Context, a ask) (*term, error) {
	at, key := e.dice.below(len(e.again)), rand.Text()
	asked := func(ctx context.Context, wait time.Duration) (client.Lease, error) {
		at++
		return e.again[at%len(e.again)].Acquire(context.WithValue(ctx, keyOf{}, key),
			client.AcquireRequest{Resource: a.resources[0], TTL: a.ttl, Holder: a.id, Wait: wait})
	}
	if e.dice.chance(3) {
		hasty, cancel := context.WithTimeout(ctx, e.dice.between(time.Millisecond, 40*time.Millisecond))
		_, _ = asked(hasty, a.wait(ctx))
		cancel()
	}
	first, err := asked(ctx, a.wait(ctx))
	if errors.Is(err, fence.ErrUnknown) && ctx.Err() == nil {
		first, err = asked(ctx, a.wait(ctx))
	}
	t, err := e.term(a.ttl, err, first)
	if err != nil {
		return nil, err
	}
	t.deadline = func() time.Time { return first.Deadline.Time() }
	var lost bool
	t.renew = func(ctx context.Context, _ int) (time.Time, error) {
		if lost { // the key would bring the other lease again
			return time.Time{}, failed(history.Refused, "lease_lost", errors.New("the lease was lost before"))
		}
		again, err := asked(ctx, 0)
		switch {
		case err != nil:
			return time.Time{}, apiFailure(err)
		case again.Presented == first.Presented:
			first = again
			return first.Deadline.Time(), nil
		}
		lost = true
		f := failed(history.Refused, "lease_lost", errors.New("the key has another lease"))
		f.other, err = e.term(a.ttl, nil, again)
		return time.Time{}, errors.Join(f, err)
	}
	return t, nil
}

type keyOf struct{}

// withKey is a transport that sends the Idempotency-Key of the context in place of the client's.
type withKey struct{ *http.Transport }

func (t withKey) RoundTrip(r *http.Request) (*http.Response, error) {
	if key, ok := r.Context().Value(keyOf{}).(string); ok {
		r = r.Clone(r.Context())
		r.Header.Set(wire.IdempotencyKey, key)
	}
	return t.Transport.RoundTrip(r)
}

// term is that of leases by the HTTP API, or the failure to get them.
func (e *env) term(ttl time.Duration, err error, leases ...client.Lease) (*term, error) {
	if err != nil {
		return nil, apiFailure(err)
	}
	t := &term{}
	for _, l := range leases {
		grant, err := l.Grant()
		if err != nil {
			return nil, err
		}
		t.grants, t.handles = append(t.grants, grant), append(t.handles, l.Handle)
	}
	t.deadline = func() time.Time { // the first one
		return slices.MinFunc(leases, func(a, b client.Lease) int { return a.Deadline.Time().Compare(b.Deadline.Time()) }).Deadline.Time()
	}
	t.renew = func(ctx context.Context, i int) (time.Time, error) {
		deadline, err := e.api().Renew(ctx, leases[i].Handle, ttl)
		if err != nil {
			return time.Time{}, apiFailure(err)
		}
		leases[i].Deadline = deadline
		return deadline.Time(), nil
	}
	t.release = func(ctx context.Context) (last error) {
		for _, l := range leases {
			if err := e.api().Release(ctx, l.Handle); err != nil {
				last = apiFailure(err)
			}
		}
		if last != nil && len(leases) > 1 {
			return failed(history.Unknown, "", last) // others may be released
		}
		return last
	}
	return t, nil
}

// apiFailure classifies an answer of the HTTP API by its code (docs/http-api.md). A missing answer is Unknown, as
// documented for the client.
func apiFailure(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, fence.ErrUnknown) {
		return failed(history.Unknown, "unreachable", err)
	}
	p, ok := errors.AsType[*client.Problem](err)
	if !ok {
		return failed(history.Unknown, "", err)
	}
	f := failed(history.Refused, p.Code, err)
	f.holder = p.Holder
	switch p.Code {
	case wire.CodeUnknown, wire.CodeInternal, "":
		f.outcome = history.Unknown
	case wire.CodeUnavailable, wire.CodeSQLError, wire.CodeInvalid, wire.CodeTooLarge, wire.CodeNotFound,
		wire.CodeMethodNotAllowed, wire.CodeNotImplemented, wire.CodeUnauthorized:
		f.outcome = history.Failed
	}
	return f
}

// nodeTimeout is how long the library waits for a Redis node. It exceeds the default, because the machine is busy.
const nodeTimeout = 250 * time.Millisecond

// openLibrary makes a program without a gateway: package lock with a pgfence Armer, or pglock, and pgfence.InTx.
func openLibrary(e *env) (acquire, error) {
	pool, err := e.pool(e.cfg.FenceURL, 2*e.cfg.Workers+2)
	if err != nil {
		return nil, err
	}
	if len(e.cfg.Redis) == 0 {
		source, err := pglock.New(pglock.Config{Pool: pool, MaxTTL: e.cfg.MaxTTL})
		if err != nil {
			return nil, err
		}
		e.closers = append(e.closers, func() { _ = source.Close() })
		return over(sourced(source), pooled)(e)
	}
	armer := pgfence.New(pool)
	config := lock.Config{
		Armer: armer, Epochs: armer, KeyPrefix: lock.Prefix(e.cfg.Prefix), MaxTTL: e.cfg.MaxTTL, NodeTimeout: nodeTimeout,
	}
	for _, addr := range e.cfg.Redis {
		config.Nodes = append(config.Nodes, lock.Node{Addr: addr})
	}
	locker, err := lock.New(config)
	if err != nil {
		return nil, err
	}
	e.closers = append(e.closers, func() { _ = locker.Close() })
	return over(locked(locker), pooled)(e)
}

// sourced acquires from any source of leases.
func sourced(source leasing.Source) lessor {
	return func(_ *env, ctx context.Context, a ask) (*term, error) {
		r := leasing.Request{Resource: a.resources[0], TTL: a.ttl, Holder: a.id}
		l, err := leasing.One(source.Acquire(ctx, leasing.Wait(!a.try), r))
		if err != nil {
			return nil, libraryFailure(err)
		}
		return &term{
			grants:   []fence.Grant{l.Grant},
			deadline: func() time.Time { return l.Deadline.Time() },
			renew: func(ctx context.Context, _ int) (time.Time, error) {
				deadline, err := source.Extend(ctx, l.Ref(), a.ttl)
				if err == nil {
					l.Deadline = deadline
				}
				return l.Deadline.Time(), libraryFailure(err)
			},
			release: func(ctx context.Context) error { return releaseFailure(source.Release(ctx, l.Ref())) },
		}, nil
	}
}

// locked acquires from a Locker. The term keeps its first grant, so that its holder can write after the end.
func locked(locker *lock.Locker) lessor {
	return func(e *env, ctx context.Context, a ask) (*term, error) {
		options := []lock.AcquireOption{lock.WithTTL(a.ttl), lock.WithHolder(a.id)}
		if e.dice.chance(5) {
			options = append(options, lock.WithKeepAlive(lock.KeepAlive{Renewals: 1 + e.dice.below(3)}))
		}
		acquire := locker.Acquire
		if a.try {
			acquire = locker.TryAcquire
		}
		l, err := acquire(ctx, a.resources[0], options...)
		if err != nil {
			return nil, libraryFailure(err)
		}
		grant, err := l.Grant()
		return &term{
			grants:   []fence.Grant{grant},
			deadline: func() time.Time { return l.Deadline().Time() },
			renew: func(ctx context.Context, _ int) (time.Time, error) {
				err := l.Extend(ctx, a.ttl)
				return l.Deadline().Time(), libraryFailure(err)
			},
			release: func(ctx context.Context) error { return releaseFailure(l.Release(ctx)) },
		}, libraryFailure(err)
	}
}

// releaseFailure is libraryFailure for a release: some of the servers may have it.
func releaseFailure(err error) error {
	if errors.Is(err, lock.ErrNoQuorum) || errors.Is(err, leasing.ErrUnavailable) {
		return failed(history.Unknown, "no_quorum", err)
	}
	return libraryFailure(err)
}

// libraryFailure classifies an error of packages lock, pglock and pgfence by their documentation: unless the outcome is
// unknown, nothing was acquired, extended, confirmed or written.
func libraryFailure(err error) error {
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*failure](err); ok && !errors.Is(err, fence.ErrUnknown) {
		return f
	}
	f := failed(history.Failed, "", err)
	if held, ok := errors.AsType[*leasing.HeldError](err); ok {
		f.holder = held.Holder
	}
	if answer, ok := errors.AsType[*pgconn.PgError](err); ok {
		f.code = answer.Code
	}
	refusal, refused := fence.CodeOf(err)
	switch {
	case errors.Is(err, lock.ErrHeld):
		f.outcome, f.code = history.Refused, "held"
	case errors.Is(err, lock.ErrLost), errors.Is(err, lock.ErrReleased):
		f.outcome, f.code = history.Refused, "lease_lost"
	case refused:
		f.outcome, f.code = history.Refused, refusal.SQLState
	case errors.Is(err, lock.ErrNoQuorum):
		f.code = "no_quorum"
	}
	if errors.Is(err, fence.ErrUnknown) || errors.Is(err, pgfence.ErrTxEnded) {
		f.outcome = history.Unknown
	}
	return f
}
