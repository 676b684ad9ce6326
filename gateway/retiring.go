package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
)

// The lease that endUnused takes expires by itself if the gateway dies.
const (
	endingTTL     = 10 * time.Second
	endingTimeout = 5 * time.Second
	endingHolder  = "retiring an unused fence"
)

// retireOften retires fences unused for RetireAfter, until ctx ends. Several gateways may do so on one database.
func (g *Gateway) retireOften(ctx context.Context) error {
	tick := time.NewTicker(min(g.cfg.RetireAfter/4+time.Millisecond, time.Hour))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		retired, ended, err := g.retire(ctx)
		g.arms.retired.Add(float64(retired))
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			g.log.Warn("failed to retire unused fences; the next run continues", "retired", retired, "error", err)
		case retired+ended > 0:
			g.log.Info("unused fences were retired", "retired", retired, "grants_ended", ended)
		}
	}
}

// retire scans every fence once. It ends grants that were never ended if nobody holds their leases. Their fences retire
// after another RetireAfter without use.
func (g *Gateway) retire(ctx context.Context) (retired, ended int, err error) {
	for after := ""; ; {
		step, err := g.fence.Retire(ctx, g.cfg.RetireAfter, after)
		retired += step.Fences
		if err != nil {
			return retired, ended, err
		}
		for _, resource := range step.Unended {
			switch err := g.endUnused(ctx, resource); {
			case err == nil:
				ended++
			case errors.Is(err, leasing.ErrHeld): // in use
			case ctx.Err() != nil, errors.Is(err, leasing.ErrUnavailable):
				return retired, ended, err
			default:
				g.log.Warn("failed to end the grant of an unused fence; the next run tries again", "resource", resource, "error", err)
			}
		}
		if after = step.Next; after == "" {
			return retired, ended, nil
		}
	}
}

// endUnused ends the grant of a resource whose holder died or lost its lease: it acquires the lease and releases it,
// which ends every grant of the resource.
func (g *Gateway) endUnused(ctx context.Context, resource string) error {
	ctx, cancel := context.WithTimeout(ctx, endingTimeout)
	defer cancel()
	lease, err := leasing.One(g.source.Acquire(ctx, leasing.AtOnce, leasing.Request{Resource: resource, TTL: min(endingTTL, g.cfg.DefaultTTL), Holder: endingHolder}))
	if err != nil {
		return err
	}
	if err := g.source.Release(ctx, lease.Ref()); err != nil && !errors.Is(err, leasing.ErrLost) {
		return err
	}
	return nil
}
