package gateway

import (
	"context"
	"errors"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/lock/continuity"
)

// continuityArmer arms only on the accepted PostgreSQL. An end changes exactly the grant that is meant, or nothing, and a
// floor sends no query: both need no confirmation.
type continuityArmer struct {
	leasing.Armer

	servers *servers
}

var _ leasing.Armer = continuityArmer{}

func (t continuityArmer) Arm(ctx context.Context, all ...fence.Arming) error {
	return t.when(ctx, func() error { return t.Armer.Arm(ctx, all...) })
}

// Raised needs no confirmation: a PostgreSQL that has forgotten fences only reports fewer. Where the database records
// another source of leases, nothing was raised for these nodes, and every acquisition fails.
func (t continuityArmer) Raised(ctx context.Context) (bool, error) {
	raised, err := t.Armer.Raised(ctx)
	if raised && errors.As(t.servers.claim(ctx), new(*continuity.OtherSourceError)) {
		return false, nil
	}
	return raised, err
}

// MayAdmit refuses to admit the nodes if no lease may be given on this PostgreSQL: it may be a copy, and the keys may
// belong to the original, whose gateways admit the nodes. If PostgreSQL or nodes are away, MayAdmit refuses nothing.
func (t continuityArmer) MayAdmit(ctx context.Context) error {
	if _, err := t.servers.confirm(ctx); continuity.Refused(err) {
		return err
	}
	return nil
}

func (t continuityArmer) when(ctx context.Context, arm func() error) error {
	return t.servers.arming(ctx, arm)
}
