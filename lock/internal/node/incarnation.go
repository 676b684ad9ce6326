package node

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// A group is strict or best effort, see [Config.BestEffort]. The mode is part of each incarnation's name. The scripts
// are bound to the incarnation, so a script serves Lockers of one mode only, and a node changes its mode in one step.

const bestEffortMark = "best-effort-"

// IsBestEffort reads the mode from the name of an incarnation.
func IsBestEffort(incarnation string) bool {
	return strings.HasPrefix(incarnation, bestEffortMark)
}

func NewNonce(bestEffort bool) string { return NonceOf(bestEffort, NewID()) }

func NonceOf(bestEffort bool, id string) string {
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
func (s Server) checkMode(incarnation string) error {
	if IsBestEffort(incarnation) != s.BestEffort {
		return &modeError{bestEffort: !s.BestEffort}
	}
	return nil
}

// Mark gives a node an incarnation of the given mode.
func (n *Node) Mark(ctx context.Context, incarnation string, bestEffort bool) error {
	if incarnation != "" && IsBestEffort(incarnation) == bestEffort {
		return nil
	}
	return n.Rename(ctx, incarnation, NewNonce(bestEffort), "")
}

// Rename gives a node another incarnation, unless another reign than the given one was noted; "": whichever was. Its
// scripts are not loaded, so the node is not admitted.
func (n *Node) Rename(ctx context.Context, incarnation, next, reign string) error {
	values, err := renameScript.Run(ctx, n.client, []string{n.keys.H}, incarnation, next, reign).Slice()
	switch {
	case err != nil:
		return ServerError(err)
	case integer(values, 0) != 1:
		return fmt.Errorf("end the node's incarnation: %w", ErrRace)
	}
	return nil
}

var renameScript = redis.NewScript(renameText)
