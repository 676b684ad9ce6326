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

// Run waits until this process leads, does work under the leader's grant, and gives the Lease back when work returns.
// It waits until ctx ends, while another leads and while the API server is unavailable. It then leads for one term. The
// context of work ends with the leadership, or with ctx; context.Cause says which. Run always waits for work, and
// renews the Lease until work returns, so work has to respect its context. To lead again, call Run again.
//
// The error is work's. If the leadership ended before work returned, it is joined with [leasing.ErrLost]: others may
// have led, and the fence may have refused some of work's writes. If work did not begin, the error is or
// wraps one of these: a [*fence.InvalidError]; [leasing.ErrUnavailable]; the Armer's; [leasing.ErrLost], if arming took
// longer than the Lease lives; or ctx's, joined with the reason for the wait: [leasing.ErrHeld] or
// [leasing.ErrUnavailable].
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
	ctx   context.Context // of the elector; also ends if the Lease can't be taken
	stop  context.CancelCauseFunc
	leads chan struct{}
	ended chan struct{} // closed when the elector has stopped
}

// campaign starts an elector that tries to take the Lease. It outlives ctx: work ends before the Lease is given back.
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
			_ = lock.term.lose(errNotRenewed) // no effect if the term is already over
		}
	}()
	return c, nil
}

// end stops the elector.
func (c *candidate) end() {
	c.stop(nil)
	<-c.ended
}

// wait returns when the candidate leads. After an error it holds nothing.
func (c *candidate) wait(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { c.stop(context.Cause(ctx)) })()
	select {
	case <-c.leads:
		return nil
	case <-c.ctx.Done():
	case <-c.ended: // it led, and lost the Lease before wait noticed
	}
	c.end()
	lost := c.lock.term.over()
	_ = c.lock.Release(ctx) // frees a Lease that was partly taken
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
