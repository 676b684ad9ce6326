package gateway

import (
	"context"
	"errors"

	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway/activity"
)

// announcingArmer arms, and then ends the sessions that carry an older grant: those on this gateway's PostgreSQL port
// at once, those on other gateways by a notification.
type announcingArmer struct {
	fence *pgfence.Fence
	tell  func(resource string, token fence.Token)
	begin func(resource string) (end func()) // around each arming
}

// armer is the part of the fence that a source of leases uses.
type armer interface {
	leasing.AllArmer
	leasing.Ender
	leasing.Floorer
	leasing.Recorder
}

var _ armer = announcingArmer{}

func (a announcingArmer) Arm(ctx context.Context, arming fence.Arming) error {
	defer a.begin(arming.Resource)()
	err := a.fence.Arm(ctx, arming)
	if raised(err) {
		a.tell(arming.Resource, arming.Token)
	}
	return err
}

// ArmAll arms several resources in one transaction.
func (a announcingArmer) ArmAll(ctx context.Context, all []fence.Arming) error {
	for _, arming := range all {
		defer a.begin(arming.Resource)()
	}
	err := a.fence.ArmAll(ctx, all)
	if raised(err) {
		for _, arming := range all {
			a.tell(arming.Resource, arming.Token)
		}
	}
	return err
}

// raised reports whether arming has raised the fence, drained or not.
func raised(err error) bool {
	undrained, ok := errors.AsType[*fence.UndrainedError](err)
	return err == nil || ok && undrained.Token != 0
}

// End ends the grant of a released lease. Sessions that carry it stay open: their next write is refused.
func (a announcingArmer) End(ctx context.Context, e fence.Ending) error { return a.fence.End(ctx, e) }

// Floor is the token up to which a resource without a fence refuses.
func (a announcingArmer) Floor(resource string) fence.Token { return a.fence.Floor(resource) }

// Raised reports whether a fence was ever raised here.
func (a announcingArmer) Raised(ctx context.Context) (bool, error) { return a.fence.Raised(ctx) }

// superseded ends sessions with grants older than token, on this gateway and others.
func (g *Gateway) superseded(resource string, token fence.Token) {
	g.notifier.say(resource)
	if g.pg != nil {
		g.pg.Superseded(resource, token)
	}
}

// overtakes notes a token that was armed for a lease.
func (g *Gateway) overtakes(resource string, token fence.Token) {
	if last := g.held.armed(resource, token); last > 0 {
		g.seen.Tell(activity.Event{Kind: wire.EventOver, Resource: resource, Presented: last, Recorded: token})
	}
	g.superseded(resource, token)
}

// armed is called with each fence that PostgreSQL raised while it granted a lease.
func (g *Gateway) armed(resource string, token fence.Token) {
	g.arms.arms.WithLabelValues(armArmed).Inc()
	g.overtakes(resource, token)
}

const sqlTokens = `SELECT resource, token FROM fence.fences WHERE resource = ANY ($1)`

// tokens reads the recorded fences of these resources.
func (g *Gateway) tokens(ctx context.Context, resources []string) (map[string]fence.Token, error) {
	rows, _ := g.pool.Query(ctx, sqlTokens, resources) // rows returns the error again
	return tokensOf(rows)
}

const sqlEndBackend = `SELECT fence.end_backend($1, $2)`

// endBackend ends a PostgreSQL session whose client is connected to this gateway.
func (g *Gateway) endBackend(ctx context.Context, pid uint32, port int) (ended bool, err error) {
	err = g.pool.QueryRow(ctx, sqlEndBackend, int32(pid), int32(port)).Scan(&ended)
	return ended, err
}
