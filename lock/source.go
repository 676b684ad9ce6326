package lock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/internal/admission"
)

// Source is the Locker as a [leasing.Source], for code that takes its leases from any kind of source. Its leases have
// no timers and no handles in this process, only a deadline. [Metrics] is not notified of their end, because any
// process may end them. Closing it closes the Locker. It is safe for concurrent use.
func (l *Locker) Source() leasing.Source { return source{l} }

type source struct{ l *Locker }

var _ leasing.Source = source{}

func (s source) Acquire(ctx context.Context, wait leasing.Wait, all ...leasing.Request) ([]leasing.Lease, error) {
	taken, err := s.acquire(ctx, wait, all)
	if err != nil {
		return nil, sourceError(err)
	}
	given := make([]leasing.Lease, len(taken))
	for i, a := range taken {
		given[i] = a.given()
	}
	return given, nil
}

func (s source) acquire(ctx context.Context, wait leasing.Wait, all []leasing.Request) ([]*attempt, error) {
	asked := make([]acquisition, len(all))
	for i, r := range all {
		o, err := s.options(r)
		if err != nil {
			return nil, err
		}
		asked[i] = acquisition{r.Resource, o}
	}
	patience := once
	if wait {
		patience = s.l.waiting
	}
	if len(asked) != 1 {
		return s.l.acquireAllMeasured(ctx, asked, patience)
	}
	a, err := s.l.acquire(ctx, asked[0].resource, asked[0].o, patience)
	return []*attempt{a}, err
}

func (s source) options(r leasing.Request) (acquireOptions, error) {
	r.Holder = cmp.Or(r.Holder, s.l.cfg.Holder)
	return acquireOptions{
		ttl: r.TTL.Truncate(time.Millisecond), holder: r.Holder, sealHash: r.SealHash, repeatable: r.Repeatable,
	}, r.Validate(s.l.cfg.minTTL, s.l.cfg.longest())
}

// given is the lease of an acquisition, without a handle.
func (a *attempt) given() leasing.Lease {
	return leasing.Lease{
		Grant: fence.Grant{Resource: a.resource, Token: a.token, Seal: a.seal}, Owner: a.owner,
		Deadline: a.deadline,
	}
}

func (s source) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (clock.Instant, error) {
	deadline, err := s.l.Extend(ctx, ref, ttl)
	return deadline, sourceError(err)
}

func (s source) Release(ctx context.Context, ref leasing.Ref) error {
	return sourceError(s.l.Release(ctx, ref))
}

func (s source) Inspect(ctx context.Context, resources ...string) ([]leasing.Inspection, error) {
	all, err := s.l.Inspect(ctx, resources...)
	return all, sourceError(err)
}

func (s source) Ready(ctx context.Context) (degraded string, err error) {
	degraded, err = s.l.Ready(ctx)
	return degraded, sourceError(err)
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
	case errors.Is(err, ErrHeld), admission.IsUnkeyed(err):
		return err
	case errors.Is(err, fence.ErrNotRaised): // overtaken by other acquisitions repeatedly
		as = leasing.ErrHeld
	case errors.Is(err, ErrNoQuorum), errors.Is(err, ErrQuarantined), errors.Is(err, ErrNodeTimeout), errors.Is(err, ErrExhausted):
		return &leasing.UnavailableError{Part: leasing.PartRedis, Cause: err}
	case errors.As(err, new(cutShort)) && errors.Is(err, context.DeadlineExceeded): // the nodes took all the time
		return &leasing.UnavailableError{Part: leasing.PartRedis, Cause: err}
	case errors.Is(err, ErrReleased):
		as = leasing.ErrLost
	default:
		return err
	}
	return fmt.Errorf("%w: %w", as, err)
}
