package kubelock

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// Run waits until this process leads, does work under the leader's grant, and gives the Lease back when work returns. It
// waits until ctx ends, while another leads and while the API server is away. Then it leads for one term: the context that
// work gets ends with the leadership, or with ctx; context.Cause says which. Run waits for work in any case, and renews
// the Lease until work returns, so work has to heed its context. A process that wants to lead again calls Run again.
//
// The error is work's. Where the leadership was over before work returned it is joined with [leasing.ErrLost]: others may
// have led meanwhile, and the fence may have refused some of work's writes. Where work did not begin, the error is one of
// these, or wraps one: a [*fence.InvalidError]; [leasing.ErrUnavailable]; the Armer's; [leasing.ErrLost], where arming took
// longer than the Lease lives; that of ctx, joined with what it waited for: [leasing.ErrHeld] or [leasing.ErrUnavailable].
func Run(ctx context.Context, cfg Config, work func(ctx context.Context, grant fence.Grant) error) error {
	lock, err := New(cfg)
	if err != nil {
		return err
	}
	c, err := campaign(ctx, lock)
	if err != nil {
		return err
	}
	if err := c.wait(ctx); err != nil {
		return err
	}
	return leasing.Under(ctx, lock, work)
}

// candidate is a Lock whose elector runs here.
type candidate struct {
	lock  *Lock
	ctx   context.Context // of the elector; ends also because the Lease can't be had
	stop  context.CancelCauseFunc
	leads chan struct{}
	ended chan struct{} // the elector has
}

// campaign has an elector try to take the Lease. It outlives ctx: work ends before the Lease is given back.
func campaign(ctx context.Context, lock *Lock) (*candidate, error) {
	c := &candidate{lock: lock, leads: make(chan struct{}), ended: make(chan struct{})}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: lock.Describe(),
		LeaseDuration: lock.cfg.LeaseDuration, RenewDeadline: lock.cfg.RenewDeadline, RetryPeriod: lock.cfg.RetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { close(c.leads) }, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return nil, err
	}
	logger := logr.FromSlogHandler(lock.cfg.Logger.Handler())
	c.ctx, c.stop = context.WithCancelCause(klog.NewContext(context.WithoutCancel(ctx), logger))
	lock.giveUp, lock.stop = c.stop, c.end
	go func() {
		defer close(c.ended)
		elector.Run(c.ctx)
		if lock.term.token() > 0 {
			_ = lock.term.lose(errNotRenewed) // unless it is over already
		}
	}()
	return c, nil
}

// end ends the elector.
func (c *candidate) end() {
	c.stop(nil)
	<-c.ended
}

// wait returns when the candidate leads. After an error it has nothing.
func (c *candidate) wait(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { c.stop(context.Cause(ctx)) })()
	select {
	case <-c.leads:
		return nil
	case <-c.ctx.Done():
	case <-c.ended: // it led, and lost the Lease before anybody looked
	}
	c.end()
	lost := c.lock.term.over()
	_ = c.lock.Release(ctx) // what was taken half-way
	switch {
	case ctx.Err() != nil:
		if c.lock.why == nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%w: %w", c.lock.why, context.Cause(ctx))
	case lost != nil:
		return lost
	default:
		return context.Cause(c.ctx)
	}
}
