package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A group is strict or best effort, see [Config.BestEffort]. The mode is part of each incarnation's name. The scripts
// are bound to the incarnation, so a script serves Lockers of one mode only, and a node changes its mode in one step.

const bestEffortMark = "best-effort-"

// isBestEffort reads the mode from the name of an incarnation.
func isBestEffort(incarnation string) bool {
	return strings.HasPrefix(incarnation, bestEffortMark)
}

// newNonce creates the name of a new incarnation in this Locker's mode.
func (l *Locker) newNonce() string {
	if l.cfg.nonces != nil {
		return nonceOf(l.cfg.BestEffort, l.cfg.nonces())
	}
	return newNonce(l.cfg.BestEffort)
}

func newNonce(bestEffort bool) string { return nonceOf(bestEffort, newID()) }

func nonceOf(bestEffort bool, id string) string {
	if bestEffort {
		return bestEffortMark + id
	}
	return id
}

// modeError is an [ErrMode] with the remedy.
type modeError struct{ bestEffort bool } // the node's mark

func (e *modeError) Error() string {
	if e.bestEffort {
		return "the node is marked best effort and this process is strict: use --redis-best-effort (Config.BestEffort) in all processes of the group, " +
			"or end it with: fencegate nodes mode strict; a gateway admits a best-effort node at once, so it needs no nodes admit"
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

// state reads a node's state. A node that is marked for the other mode is an error.
func (n *node) state(ctx context.Context) nodeState {
	st := n.read(ctx)
	if st.err == nil && st.incarnation != "" {
		if err := n.cfg.checkMode(st.incarnation); err != nil {
			return nodeState{err: err}
		}
	}
	return st
}

// read asks all nodes at once, whatever their mode.
func (l *Locker) read(ctx context.Context) []nodeState {
	states := make([]nodeState, len(l.nodes))
	l.each(func(i int, n *node) { states[i] = n.read(ctx) })
	l.noteLimits(states)
	return states
}

// inOtherMode is the error of a node that is marked for the other mode: no node of its group is admitted beside it.
func inOtherMode(states []nodeState) error {
	for _, st := range states {
		if errors.Is(st.err, ErrMode) {
			return st.err
		}
	}
	return nil
}

// admittedWhen is text for the log.
func (c *Config) admittedWhen() string {
	if c.Embedded || c.BestEffort {
		return "it is admitted"
	}
	return "its quarantine is over"
}

// quarantineMS is the quarantine as an argument of admit_begin.lua.
func (n *node) quarantineMS(quarantine time.Duration) int64 {
	if n.cfg.bestEffort {
		return -1
	}
	return quarantine.Milliseconds()
}

// errUnused: the nodes of a new group take the mode of the Locker that admits them.
var errUnused = errors.New("no node was admitted yet: new nodes take the mode of the process that admits them")

// Mark marks the nodes of a group for best effort, or as strict. Nodes that were marked for the other mode grant
// nothing from then on, until Lockers of the new mode admit them: at once for best effort, otherwise after a
// quarantine, since a resource may have two holders until then. Current leases stay valid until their deadline, and
// are not extended before. The error lists nodes that could not be marked: call Mark again once they are available.
func (l *Locker) Mark(ctx context.Context, bestEffort bool) error {
	if err := l.keyed(ctx); err != nil {
		return err
	}
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

// mark gives a node an incarnation of the given mode.
func (n *node) mark(ctx context.Context, incarnation string, bestEffort bool) error {
	if incarnation != "" && isBestEffort(incarnation) == bestEffort {
		return nil
	}
	return n.rename(ctx, incarnation, newNonce(bestEffort), "")
}

// rename gives a node another incarnation, unless another reign than the given one was noted; "": whichever was. Its
// scripts are not loaded, so the node is not admitted.
func (n *node) rename(ctx context.Context, incarnation, next, reign string) error {
	values, err := renameScript.Run(ctx, n.client, []string{n.keys.h}, incarnation, next, reign).Slice()
	switch {
	case err != nil:
		return serverError(err)
	case integer(values, 0) != 1:
		return fmt.Errorf("end the node's incarnation: %w", errRace)
	}
	return nil
}

var renameScript = redis.NewScript(renameText)
