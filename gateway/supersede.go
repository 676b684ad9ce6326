package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/wire"
)

// armer arms, counts the outcomes, and then ends the sessions that carry an older grant: those on this gateway's
// PostgreSQL port at once, those on other gateways by a notification. Sessions that carry a grant that has ended stay
// open: their next write is refused.
type armer struct {
	*pgfence.Fence

	metrics *armMetrics
	tell    func(resource string, token fence.Token)
	begin   func(resource string) (end func()) // around each arming
}

var _ leasing.Armer = armer{}

func (a armer) Arm(ctx context.Context, all ...fence.Arming) error {
	for _, arming := range all {
		defer a.begin(arming.Resource)()
	}
	began := time.Now()
	err := a.Fence.Arm(ctx, all...)
	a.metrics.count(len(all), time.Since(began), err)
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
