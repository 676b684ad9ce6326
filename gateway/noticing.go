package gateway

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/lock/admin"
	"github.com/fencegate/fencegate/wire"
)

// Leases expire and nodes come and go without a request. The gateway polls to notice it.
const (
	noticeEvery   = time.Second
	nodesEvery    = 2 * time.Second
	noticeTimeout = 2 * time.Second
)

// noticeExpiry reports expired leases of this gateway, until ctx ends.
func (g *Gateway) noticeExpiry(ctx context.Context) error {
	return expiries{g.held, g.source, clock.New(), g.currentTokens, g.seen.Tell}.notice(ctx)
}

// expiries reports the leases of this gateway that expired.
type expiries struct {
	held    *holdings
	source  leasing.Source
	clock   *clock.Clock
	current func(ctx context.Context, resources []string) (map[string]fence.Token, error) // of grants that have not ended
	tell    func(activity.Event)
}

func (e expiries) notice(ctx context.Context) error {
	tick := time.NewTicker(noticeEvery)
	defer tick.Stop()
	var unsure []leasing.Ref // expired here, not looked up yet
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		unsure = append(unsure, e.held.over()...)
		if len(unsure) == 0 {
			continue
		}
		unsure = unsure[:min(len(unsure), maxRanOut)]
		look, cancel := context.WithTimeout(ctx, noticeTimeout)
		if e.tellExpired(look, unsure) == nil {
			unsure = nil
		}
		cancel()
	}
}

// tellExpired reports the leases that expired here. Another gateway may have extended or released one, so the lock and
// the fence decide.
func (e expiries) tellExpired(ctx context.Context, refs []leasing.Ref) error {
	names := make([]string, len(refs))
	for i, ref := range refs {
		names[i] = ref.Resource
	}
	asked := e.clock.Now()
	states, err := e.source.Inspect(ctx, names...)
	if err != nil {
		return err
	}
	current, err := e.current(ctx, names)
	if err != nil {
		return err
	}
	for i, ref := range refs {
		switch state := states[i]; {
		case state.Locked && state.Owner == ref.Owner && state.TTL >= 0:
			e.held.note(ref, asked.Add(max(state.TTL, time.Millisecond)))
		case current[ref.Resource] == ref.Token:
			e.tell(activity.Event{Kind: wire.EventExpired, Resource: ref.Resource, Presented: ref.Token})
		default:
			e.held.ended(ref)
		}
	}
	return nil
}

// sqlCurrent selects the tokens whose grants have not ended.
const sqlCurrent = `SELECT resource, token FROM fence.fences WHERE resource = ANY ($1) AND ended_at IS NULL`

func (g *Gateway) currentTokens(ctx context.Context, resources []string) (map[string]fence.Token, error) {
	rows, _ := g.pool.Query(ctx, sqlCurrent, resources) // rows returns the error again
	return tokensOf(rows)
}

func tokensOf(rows pgx.Rows) (map[string]fence.Token, error) {
	recorded := make(map[string]fence.Token)
	var resource string
	var token int64
	_, err := pgx.ForEachRow(rows, []any{&resource, &token}, func() error {
		recorded[resource] = fence.Token(token)
		return nil
	})
	return recorded, err
}

// ofRedis reports whether the leases come from Redis nodes.
func (g *Gateway) ofRedis() bool { return len(g.cfg.RedisNodes) > 0 && g.cfg.Leases == nil }

// noticeNodes reports Redis nodes that begin or cease to grant, until ctx ends.
func (g *Gateway) noticeNodes(ctx context.Context) error {
	tick := time.NewTicker(nodesEvery)
	defer tick.Stop()
	known := make(map[string]string)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, node := range g.nodes(ctx) {
			was, seen := known[node.Name]
			known[node.Name] = node.State
			if e, ok := nodeEvent(was, node); ok && seen && ctx.Err() == nil {
				g.seen.Tell(e)
			}
		}
	}
}

// nodeEvent returns the event for the change of a node's state.
func nodeEvent(was string, node wire.NodeStatus) (activity.Event, bool) {
	kinds := map[string]string{
		wire.NodeAdmitted: wire.EventAdmitted, wire.NodeQuarantined: wire.EventQuarantined, wire.NodeOut: wire.EventQuarantined, wire.PartAway: wire.EventAway,
	}
	kind := kinds[node.State]
	return activity.Event{Kind: kind, Node: node.Name}, kind != kinds[was]
}

// nodes returns the current state of the Redis nodes; nil for another source of leases.
func (g *Gateway) nodes(ctx context.Context) []wire.NodeStatus {
	ctx, cancel := context.WithTimeout(ctx, noticeTimeout)
	defer cancel()
	if g.locker == nil {
		return nil
	}
	var all []wire.NodeStatus
	for _, st := range admin.Of(g.locker).Status(ctx) {
		all = append(all, wire.NodeStatus{Name: st.Name, State: nodeState(st), QuarantineMS: st.Quarantine.Milliseconds(), Warning: st.Warning})
	}
	return all
}

func nodeState(st admin.NodeStatus) string {
	switch {
	case st.Err != nil:
		return wire.PartAway
	case st.Admitted:
		return wire.NodeAdmitted
	case st.Quarantine > 0:
		return wire.NodeQuarantined
	}
	return wire.NodeOut
}
