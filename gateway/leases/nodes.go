package leases

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/fencegate/fencegate/gateway/activity"
	"github.com/fencegate/fencegate/internal/pgtext"
	"github.com/fencegate/fencegate/internal/recent"
	"github.com/fencegate/fencegate/lock"
	"github.com/fencegate/fencegate/lock/admin"
	"github.com/fencegate/fencegate/wire"
)

const (
	// nodesEvery is how often the state of the nodes is compared with the last one.
	nodesEvery = 2 * time.Second
	// nodesTimeout bounds one look at the nodes.
	nodesTimeout = 2 * time.Second
	// quarantineFor is how long callers share the answer of how long the quarantine lasts.
	quarantineFor = time.Second
	// quarantineTimeout bounds one such question.
	quarantineTimeout = 500 * time.Millisecond
	// remindEvery is how often the log repeats why no leases can be granted yet.
	remindEvery = time.Minute
)

// Nodes are the Redis nodes of the lock: they are admitted, watched and shown. A nil Nodes has none.
type Nodes struct {
	locker *lock.Locker
	log    *slog.Logger
	tried  chan struct{} // closed once the nodes are admitted, or that has failed by more than a busy machine
	ends   *recent.Answer[time.Time]
}

// NewNodes returns the nodes of a locker.
func NewNodes(locker *lock.Locker, log *slog.Logger) *Nodes {
	return &Nodes{locker: locker, log: log, tried: make(chan struct{}), ends: recent.New[time.Time]()}
}

// Admit admits the nodes, and retries until ctx ends. It closes Tried on success and on the first failure other than a
// node timeout. While PostgreSQL or nodes are away the gateway serves what needs no lease; it grants leases once they are
// back.
func (n *Nodes) Admit(ctx context.Context) error {
	tried := sync.OnceFunc(func() { close(n.tried) })
	defer tried()
	failed, said := false, time.Now() // the start already reports the first failure
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := admin.Of(n.locker).Init(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			if failed {
				n.log.Info("the Redis nodes are admitted; leases are granted")
			}
			return nil
		case !errors.Is(err, lock.ErrNodeTimeout): // the machine may be busy
			tried()
		}
		failed = true
		if time.Since(said) >= remindEvery {
			said = time.Now()
			n.log.Warn("no leases are granted yet; requests that need no lease are served", "step", "admit the Redis nodes", "error", pgtext.Of(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// Tried is closed once the nodes are admitted, or a first attempt of [Nodes.Admit] has failed by more than a timeout.
func (n *Nodes) Tried() <-chan struct{} { return n.tried }

// Watch reports nodes that begin or cease to grant, until ctx ends.
func (n *Nodes) Watch(ctx context.Context, tell func(activity.Event)) error {
	tick := time.NewTicker(nodesEvery)
	defer tick.Stop()
	known := make(map[string]string)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		for _, node := range n.Status(ctx) {
			was, seen := known[node.Name]
			known[node.Name] = node.State
			if e, ok := nodeEvent(was, node); ok && seen && ctx.Err() == nil {
				tell(e)
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

// Waiters is the number of callers that wait for a lease.
func (n *Nodes) Waiters() int { return n.locker.Waiters() }

// Status returns the current state of the nodes.
func (n *Nodes) Status(ctx context.Context) []wire.NodeStatus {
	if n == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, nodesTimeout)
	defer cancel()
	var all []wire.NodeStatus
	for _, st := range admin.Of(n.locker).Status(ctx) {
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

// quarantineError reports when the quarantine that blocks leases ends.
type quarantineError struct {
	cause error
	left  time.Duration
}

func (e *quarantineError) Error() string {
	return fmt.Sprintf("%v; the quarantine of the nodes ends in %v", e.cause, e.left.Round(time.Second))
}

func (e *quarantineError) Unwrap() error { return e.cause }

// Left is the time until the quarantine ends.
func (e *quarantineError) Left() time.Duration { return e.left }

// Tell is the text for clients.
func (e *quarantineError) Tell() string {
	return fmt.Sprintf("No quorum of Redis nodes serves the gateway now: quarantine, %d s left.", int64((e.left+time.Second-1)/time.Second))
}

// quarantine is the time until enough nodes are admitted again; 0: not known.
func (n *Nodes) quarantine() time.Duration {
	if n == nil {
		return 0
	}
	end := n.ends.Get(quarantineFor, quarantineTimeout, func(ctx context.Context) time.Time { return time.Now().Add(admin.Of(n.locker).QuarantineLeft(ctx)) })
	return max(0, time.Until(end))
}
