package lock

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// Source is the Locker as a [leasing.Source], for code that takes its leases from any kind of source. Its leases have
// no timers and no handles in this process, only a deadline. [Metrics] is not notified of their end, because any
// process may end them. Closing it closes the Locker. It is safe for concurrent use.
func (l *Locker) Source() leasing.Source { return source{l} }

type source struct{ l *Locker }

var (
	_ leasing.AllSource = source{}
	_ leasing.Redundant = source{}
)

func (s source) TryAcquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	return s.lease(ctx, r, s.l.tryAcquire)
}

func (s source) Acquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	return s.lease(ctx, r, s.l.acquire)
}

func (s source) lease(
	ctx context.Context, r leasing.Request, acquire func(context.Context, string, acquireOptions) (*attempt, error),
) (leasing.Lease, error) {
	o, err := s.options(r)
	if err != nil {
		return leasing.Lease{}, err
	}
	a, err := acquire(ctx, r.Resource, o)
	if err != nil {
		return leasing.Lease{}, sourceError(err)
	}
	return a.given(), nil
}

func (s source) options(r leasing.Request) (acquireOptions, error) {
	opts := []AcquireOption{WithTTL(r.TTL)}
	if r.Holder != "" {
		opts = append(opts, WithHolder(r.Holder))
	}
	o, err := s.l.options(r.Resource, opts)
	o.sealHash, o.repeatable = r.SealHash, r.Repeatable
	if err == nil {
		err = validateSealHash(r.SealHash)
	}
	return o, err
}

// given is the lease of an acquisition, without a handle.
func (a *attempt) given() leasing.Lease {
	return leasing.Lease{
		Grant: fence.Grant{Resource: a.resource, Token: a.token, Seal: a.seal}, Owner: a.owner,
		Deadline: time.Now().Add(a.deadline.Left()),
	}
}

func (s source) TryAcquireAll(ctx context.Context, all []leasing.Request) ([]leasing.Lease, error) {
	return s.leases(ctx, all, once)
}

func (s source) AcquireAll(ctx context.Context, all []leasing.Request) ([]leasing.Lease, error) {
	return s.leases(ctx, all, s.l.waiting)
}

func (s source) leases(ctx context.Context, all []leasing.Request, wait patience) ([]leasing.Lease, error) {
	asked := make([]acquisition, len(all))
	for i, r := range all {
		o, err := s.options(r)
		if err != nil {
			return nil, err
		}
		asked[i] = acquisition{r.Resource, o}
	}
	taken, err := s.l.acquireAllMeasured(ctx, asked, wait)
	if err != nil {
		return nil, sourceError(err)
	}
	given := make([]leasing.Lease, len(taken))
	for i, a := range taken {
		given[i] = a.given()
	}
	return given, nil
}

func (s source) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (time.Duration, error) {
	valid, err := s.l.Extend(ctx, ref, ttl)
	return valid, sourceError(err)
}

func (s source) Release(ctx context.Context, ref leasing.Ref) error {
	err := s.l.Release(ctx, ref)
	s.l.lines.free(ref.Resource)
	return sourceError(err)
}

func (s source) Inspect(ctx context.Context, resource string) (leasing.Inspection, error) {
	ins, err := s.l.Inspect(ctx, resource)
	return ins, sourceError(err)
}

func (s source) Ready(ctx context.Context) error { return sourceError(s.l.Ping(ctx)) }

func (s source) Degraded(ctx context.Context) string {
	away, out := 0, 0
	for i, st := range s.l.states(ctx) {
		switch {
		case errors.Is(st.err, ErrMode):
			out++
		case st.err != nil:
			away++
		case !st.admitted:
			out++
			s.l.nodeLost(s.l.nodes[i])
		}
	}
	if away+out == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d Redis nodes take no part in leases, and %d are needed: %d away, %d not admitted",
		away+out, len(s.l.nodes), s.l.quorum, away, out)
}

func (s source) Close() error { return s.l.Close() }

// sourceError maps the package's errors to those of a source. Errors of the context and of the Armer stay as they
// are.
func sourceError(err error) error {
	var as error
	switch {
	case err == nil, errors.Is(err, fence.ErrInvalid):
		return err
	case errors.Is(err, ErrClosed) && errors.Is(err, fence.ErrUnknown): // it cut an arming off
		return fmt.Errorf("%w: %w", ErrClosed, fence.ErrUnknown)
	case errors.Is(err, ErrClosed):
		return ErrClosed // also if it ended a wait: then the holder does not matter
	case errors.Is(err, ErrHeld):
		return err
	case errors.Is(err, fence.ErrNotRaised): // overtaken by other acquisitions repeatedly
		as = leasing.ErrHeld
	case errors.Is(err, ErrNoQuorum), errors.Is(err, ErrQuarantined), errors.Is(err, ErrNodeTimeout), errors.Is(err, ErrExhausted):
		as = leasing.ErrUnavailable
	case errors.As(err, new(cutShort)) && errors.Is(err, context.DeadlineExceeded): // the nodes took all the time
		as = leasing.ErrUnavailable
	case errors.Is(err, ErrReleased):
		as = leasing.ErrLost
	default:
		return err
	}
	return fmt.Errorf("%w: %w", as, err)
}

// validateSealHash checks the length of a seal's hash.
func validateSealHash(hash []byte) error {
	if hash != nil && len(hash) != sha256.Size {
		return &fence.InvalidError{Field: "seal hash", Reason: fmt.Sprintf("is %d bytes long; a SHA-256 has %d", len(hash), sha256.Size)}
	}
	return nil
}
