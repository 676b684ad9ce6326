package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/lock/lockmetrics"
	"github.com/fencegate/fencegate/lock/pglock"
)

// ofPostgres is the source of leases in PostgreSQL, with metrics. Its errors name PostgreSQL as the part that is away.
type ofPostgres struct {
	leases  *pglock.Source
	metrics *lockmetrics.Metrics
}

var (
	_ leasing.AllSource = ofPostgres{}
	_ leasing.Surveyor  = ofPostgres{}
)

func (p ofPostgres) TryAcquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	begun := time.Now()
	lease, err := p.leases.TryAcquire(ctx, r)
	return lease, p.acquired(err, begun, 1)
}

func (p ofPostgres) Acquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	begun := time.Now()
	lease, err := p.leases.Acquire(ctx, r)
	return lease, p.acquired(err, begun, 1)
}

func (p ofPostgres) TryAcquireAll(ctx context.Context, all []leasing.Request) ([]leasing.Lease, error) {
	begun := time.Now()
	leases, err := p.leases.TryAcquireAll(ctx, all)
	return leases, p.acquired(err, begun, len(leases))
}

func (p ofPostgres) AcquireAll(ctx context.Context, all []leasing.Request) ([]leasing.Lease, error) {
	begun := time.Now()
	leases, err := p.leases.AcquireAll(ctx, all)
	return leases, p.acquired(err, begun, len(leases))
}

func (p ofPostgres) acquired(err error, begun time.Time, leases int) error {
	for range leases {
		if err == nil {
			p.metrics.Acquired(time.Since(begun), 1)
		}
	}
	return p.told("acquire", err)
}

func (p ofPostgres) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (time.Duration, error) {
	valid, err := p.leases.Extend(ctx, ref, ttl)
	if err == nil {
		p.metrics.Renewed()
	}
	return valid, p.told("extend", err)
}

func (p ofPostgres) Release(ctx context.Context, ref leasing.Ref) error {
	return p.told("release", p.leases.Release(ctx, ref))
}

func (p ofPostgres) Inspect(ctx context.Context, resource string) (leasing.Inspection, error) {
	ins, err := p.leases.Inspect(ctx, resource)
	return ins, unanswered(ctx, err)
}

func (p ofPostgres) InspectAll(ctx context.Context, resources []string) ([]leasing.Inspection, error) {
	all, err := p.leases.InspectAll(ctx, resources)
	return all, unanswered(ctx, err)
}

func (p ofPostgres) Ready(ctx context.Context) error { return p.leases.Ready(ctx) }

func (p ofPostgres) Close() error { return p.leases.Close() }

// told counts a failure.
func (p ofPostgres) told(operation string, err error) error {
	if err != nil {
		p.metrics.Failed(operation, causeOf(err))
	}
	return named(err)
}

// unanswered is [named] for a question, which PostgreSQL did not answer either if its time is over.
func unanswered(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return &api.UnavailableError{Part: wire.PartPostgres, Cause: err}
	}
	return named(err)
}

// named names PostgreSQL as the part that is away or closed.
func named(err error) error {
	if errors.Is(err, leasing.ErrUnavailable) || errors.Is(err, leasing.ErrClosed) {
		return &api.UnavailableError{Part: wire.PartPostgres, Cause: err}
	}
	return err
}

// causeOf returns the metric label for an error, as in package lock.
func causeOf(err error) string {
	for _, c := range []struct {
		err  error
		name string
	}{
		{fence.ErrInvalid, "invalid"},
		{leasing.ErrClosed, "closed"},
		{leasing.ErrHeld, "held"},
		{leasing.ErrLost, "lost"},
		{context.Canceled, "cancelled"},
		{context.DeadlineExceeded, "deadline"},
		{leasing.ErrUnavailable, "unavailable"},
	} {
		if errors.Is(err, c.err) {
			return c.name
		}
	}
	return "other"
}
