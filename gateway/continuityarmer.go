package gateway

import (
	"context"
	"errors"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/lock/continuity"
)

// continuityArmer arms only on a PostgreSQL that is the one that it was.
type continuityArmer struct {
	armer   armer
	servers *servers
}

var _ armer = continuityArmer{}

func (t continuityArmer) Arm(ctx context.Context, arming fence.Arming) error {
	return t.when(ctx, func() error { return t.armer.Arm(ctx, arming) })
}

// ArmAll arms several resources in one transaction.
func (t continuityArmer) ArmAll(ctx context.Context, all []fence.Arming) error {
	return t.when(ctx, func() error { return t.armer.ArmAll(ctx, all) })
}

// End needs no confirmation: it changes exactly the grant that is meant, or nothing.
func (t continuityArmer) End(ctx context.Context, e fence.Ending) error { return t.armer.End(ctx, e) }

// Floor needs none either: it asks nobody.
func (t continuityArmer) Floor(resource string) fence.Token { return t.armer.Floor(resource) }

// Raised needs none: a PostgreSQL that has forgotten fences only says less. Where leases come from elsewhere nothing was
// raised for the nodes, and nothing will be: each acquisition says so.
func (t continuityArmer) Raised(ctx context.Context) (bool, error) {
	raised, err := t.armer.Raised(ctx)
	if raised && errors.As(t.servers.claim(ctx), new(*continuity.OtherSourceError)) {
		return false, nil
	}
	return raised, err
}

// MayAdmit refuses the nodes' admission where no lease is given on this PostgreSQL: it may be a copy, and the keys the first
// one's, whose gateways admit the nodes. A PostgreSQL or nodes that are away refuse nothing.
func (t continuityArmer) MayAdmit(ctx context.Context) error {
	if _, err := t.servers.confirm(ctx); continuity.Refused(err) {
		return err
	}
	return nil
}

func (t continuityArmer) when(ctx context.Context, arm func() error) error {
	return t.servers.unchanged(ctx, t.servers.begin, arm)
}
