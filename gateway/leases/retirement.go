package leases

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
)

// The lease that endUnused takes expires by itself if the gateway dies.
const (
	endingTTL     = 10 * time.Second
	endingTimeout = 5 * time.Second
	endingHolder  = "retiring an unused fence"
)

// Retirement retires unused fences. Several gateways may do so on one database.
type Retirement struct {
	Fence  *pgfence.Fence
	Source leasing.Source
	After  time.Duration // without use
	TTL    time.Duration // of the leases that it takes, at most
	Count  func(retired int)
	Log    *slog.Logger
}

// Run retires fences until ctx ends.
func (r Retirement) Run(ctx context.Context) error {
	tick := time.NewTicker(min(r.After/4+time.Millisecond, time.Hour))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		retired, ended, err := r.retire(ctx)
		r.Count(retired)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			r.Log.Warn("failed to retire unused fences; the next run continues", "retired", retired, "error", err)
		case retired+ended > 0:
			r.Log.Info("unused fences were retired", "retired", retired, "grants_ended", ended)
		}
	}
}

// retire scans every fence once. It ends grants that were never ended if nobody holds their leases. Their fences retire
// after another time without use.
func (r Retirement) retire(ctx context.Context) (retired, ended int, err error) {
	for after := ""; ; {
		step, err := r.Fence.Retire(ctx, r.After, after)
		retired += step.Fences
		if err != nil {
			return retired, ended, err
		}
		for _, resource := range step.Unended {
			switch err := r.endUnused(ctx, resource); {
			case err == nil:
				ended++
			case errors.Is(err, leasing.ErrHeld): // in use
			case ctx.Err() != nil, errors.Is(err, leasing.ErrUnavailable):
				return retired, ended, err
			default:
				r.Log.Warn("failed to end the grant of an unused fence; the next run tries again", "resource", resource, "error", err)
			}
		}
		if after = step.Next; after == "" {
			return retired, ended, nil
		}
	}
}

// endUnused ends the grant of a resource whose holder died or lost its lease: it acquires the lease and releases it,
// which ends every grant of the resource.
func (r Retirement) endUnused(ctx context.Context, resource string) error {
	ctx, cancel := context.WithTimeout(ctx, endingTimeout)
	defer cancel()
	lease, err := leasing.One(r.Source.Acquire(ctx, leasing.AtOnce, leasing.Request{Resource: resource, TTL: min(endingTTL, r.TTL), Holder: endingHolder}))
	if err != nil {
		return err
	}
	if err := r.Source.Release(ctx, lease.Ref()); err != nil && !errors.Is(err, leasing.ErrLost) {
		return err
	}
	return nil
}
