package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A group is strict or best effort, see [Config.BestEffort]. The mode is part of the name of
// each incarnation. The scripts are bound to it, so that none of them serves Lockers of both
// modes, and a node changes its mode in one step.

const bestEffortMark = "best-effort-"

// isBestEffort reads the mode of an incarnation, of a parked one too.
func isBestEffort(incarnation string) bool {
	if epoch, before := parkedAs(incarnation); epoch > 0 {
		incarnation = before
	}
	return strings.HasPrefix(incarnation, bestEffortMark)
}

// newNonce names the incarnation that an admission by this Locker makes.
func (l *Locker) newNonce() string { return newNonce(l.cfg.BestEffort) }

func newNonce(bestEffort bool) string {
	if bestEffort {
		return bestEffortMark + newID()
	}
	return newID()
}

// modeError is an [ErrMode] that says what to do.
type modeError struct{ bestEffort bool } // the node's mark

func (e *modeError) Error() string {
	if e.bestEffort {
		return "the node is marked best effort and this process is strict: use --redis-best-effort (Config.BestEffort) in all processes of the group, " +
			"or end it with: fencegate nodes mode strict"
	}
	return "the node is marked strict and this process is best effort: do without --redis-best-effort (Config.BestEffort), " +
		"or change the group with: fencegate nodes mode best-effort"
}

func (e *modeError) Is(target error) bool { return target == ErrMode }

// checkMode refuses an incarnation of the other mode.
func (n Node) checkMode(incarnation string) error {
	if isBestEffort(incarnation) != n.bestEffort {
		return &modeError{bestEffort: !n.bestEffort}
	}
	return nil
}

// state is what a node says about itself. One that is marked for the other mode is an error.
func (n *node) state(ctx context.Context) nodeState {
	st := n.read(ctx)
	if st.err == nil && st.incarnation != "" {
		if err := n.cfg.checkMode(st.incarnation); err != nil {
			return nodeState{err: err}
		}
	}
	return st
}

// read asks all nodes at once, whatever they are marked for.
func (l *Locker) read(ctx context.Context) []nodeState {
	states := make([]nodeState, len(l.nodes))
	l.each(func(i int, n *node) { states[i] = n.read(ctx) })
	return states
}

// inOtherMode is the error of a node that is marked for the other mode: none of its group is
// admitted beside it.
func inOtherMode(states []nodeState) error {
	for _, st := range states {
		if errors.Is(st.err, ErrMode) {
			return st.err
		}
	}
	return nil
}

// admittedWhen is for the log.
func (c *Config) admittedWhen() string {
	if c.Embedded || c.BestEffort {
		return "it is admitted"
	}
	return "its quarantine is over"
}

// quarantineMS is a quarantine as admit_begin.lua takes it.
func (n *node) quarantineMS(quarantine time.Duration) int64 {
	if n.cfg.bestEffort {
		return -1
	}
	return quarantine.Milliseconds()
}

// errUnused: the nodes of a new group take the mode of the Locker that admits them.
var errUnused = errors.New("no node was admitted yet: new nodes take the mode of the process that admits them")

// Mark marks the nodes of a group for best effort, or as strict. Those that are marked for the
// other mode grant nothing from then on, until Lockers of the new mode admit them: at once for
// best effort, after a quarantine else, since two may hold a resource until then. Leases that
// are held go on to their deadline, and are not extended before. Nodes that could not be marked
// are in the error: call it again once they are there.
func (l *Locker) Mark(ctx context.Context, bestEffort bool) error {
	states := l.read(ctx)
	used := false
	for _, st := range states {
		used = used || st.incarnation != ""
	}
	errs := make([]error, len(l.nodes))
	l.each(func(i int, n *node) {
		if errs[i] = states[i].err; errs[i] == nil && used {
			errs[i] = n.mark(ctx, states[i].incarnation, bestEffort)
		}
		if errs[i] != nil {
			errs[i] = &NodeError{Node: n.name, Err: errs[i]}
		}
	})
	err := errors.Join(errs...)
	if err == nil && !used {
		err = errUnused
	}
	return err
}

// mark has a node without scripts of its mode, which is not admitted then.
func (n *node) mark(ctx context.Context, incarnation string, bestEffort bool) error {
	if incarnation != "" && isBestEffort(incarnation) == bestEffort {
		return nil
	}
	values, err := markScript.Run(ctx, n.client, []string{n.keys.h}, incarnation, newNonce(bestEffort)).Slice()
	switch {
	case err != nil:
		return serverError(err)
	case integer(values, 0) != 1:
		return fmt.Errorf("mark the node: %w", errRace)
	}
	return nil
}

var markScript = redis.NewScript(markText)
