package leases

import (
	"context"
	"errors"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/lock/continuity"
	"github.com/fencegate/fencegate/wire"
)

// Primary knows which server is PostgreSQL, and whether it has forgotten fences. Errors are
// [*leasing.UnavailableError]s, or the reason.
type Primary interface {
	// May refuses a lease before the source is asked.
	May(ctx context.Context) error
	// Arming runs arm, and fails unless PostgreSQL stays the accepted one.
	Arming(ctx context.Context, arm func() error) error
	// Claim records the source of the leases in the database. It fails if the database records another.
	Claim(ctx context.Context) error
	// Confirm returns nil if PostgreSQL is the accepted one.
	Confirm(ctx context.Context) (doubts int, err error)
	// Part names what keeps the history, for clients.
	Part() string
}

// ArmMetrics counts armings.
type ArmMetrics interface {
	// Armed reports the outcome of an arming of some fences.
	Armed(fences int, took time.Duration, err error)
	// Granted reports a fence that PostgreSQL raised while it granted a lease.
	Granted()
}

// Armer arms on the accepted PostgreSQL only, counts the outcomes, and announces the fences that were raised. An end
// changes exactly the grant that is meant, or nothing, and a floor sends no query: both need no confirmation.
type Armer struct {
	leasing.Armer // the fence

	Primary Primary
	Metrics ArmMetrics
	Ledger  *Ledger
	// Announce ends the sessions that carry an older grant, at this gateway and others. Sessions that carry a grant that
	// has ended stay open: their next write is refused.
	Announce func(resource string, token fence.Token)
	Tell     func(activity.Event)
}

var _ leasing.Armer = Armer{}

// Arm implements [leasing.Armer].
func (a Armer) Arm(ctx context.Context, all ...fence.Arming) error {
	return a.Primary.Arming(ctx, func() error {
		for _, arming := range all {
			defer a.Ledger.arm(arming.Resource)()
		}
		began := time.Now()
		err := a.Armer.Arm(ctx, all...)
		a.Metrics.Armed(len(all), time.Since(began), err)
		if raised(err) {
			for _, arming := range all {
				a.publish(arming.Resource, arming.Token)
			}
		}
		return err
	})
}

// Raised needs no confirmation: a PostgreSQL that has forgotten fences only reports fewer. Where the database records
// another source of leases, nothing was raised for these nodes, and every acquisition fails.
func (a Armer) Raised(ctx context.Context) (bool, error) {
	raised, err := a.Armer.Raised(ctx)
	if raised && errors.As(a.Primary.Claim(ctx), new(*continuity.OtherSourceError)) {
		return false, nil
	}
	return raised, err
}

// MayAdmit refuses to admit the nodes if no lease may be given on this PostgreSQL: it may be a copy, and the keys may
// belong to the original, whose gateways admit the nodes. If PostgreSQL or nodes are away, MayAdmit refuses nothing.
func (a Armer) MayAdmit(ctx context.Context) error {
	if _, err := a.Primary.Confirm(ctx); continuity.Refused(err) {
		return err
	}
	return nil
}

// Granted is called with each fence that PostgreSQL raised while it granted a lease.
func (a Armer) Granted(resource string, token fence.Token) {
	a.Metrics.Granted()
	a.publish(resource, token)
}

// publish reports the lease that a raised fence superseded, and announces the fence.
func (a Armer) publish(resource string, token fence.Token) {
	if last := a.Ledger.armed(resource, token); last > 0 {
		a.Tell(activity.Event{Kind: wire.EventOver, Resource: resource, Presented: last, Recorded: token})
	}
	a.Announce(resource, token)
}

// raised reports whether arming has raised the fence, drained or not.
func raised(err error) bool {
	undrained, ok := errors.AsType[*fence.UndrainedError](err)
	return err == nil || ok && undrained.Token != 0
}
