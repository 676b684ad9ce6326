package admission

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fencegate/fencegate/lock/internal/node"
)

// ErrNoQuorum: too few nodes answered. Nothing was acquired, extended or confirmed; locks on a minority are given back
// or expire.
var ErrNoQuorum = errors.New("no quorum of Redis nodes")

// QuorumError says which nodes were missing from a quorum, and why.
type QuorumError struct {
	Operation string // "acquire", "confirm", "extend", "release"
	Resource  string
	Nodes     int               // size of the group
	Quorum    int               // how many are needed
	Causes    []*node.NodeError // one for each node that did not take part

	// NeedsAdmission: so many nodes are not admitted that the others are no quorum, and this Locker has no Armer, so
	// it does not admit them automatically. An operator does; see package admin.
	NeedsAdmission bool
}

func (e *QuorumError) Error() string {
	causes := make([]string, len(e.Causes))
	for i, c := range e.Causes {
		causes[i] = c.Error()
	}
	text := fmt.Sprintf("%s %q: no quorum: %d of %d Redis nodes did not take part and %d are needed (%s)",
		e.Operation, e.Resource, len(e.Causes), e.Nodes, e.Quorum, strings.Join(causes, "; "))
	if e.NeedsAdmission {
		text += "; admit the nodes of a new group with Admin.Init or fencegate nodes init, nodes that lost their data with Admin.Admit or fencegate nodes admit, " +
			"and a group without PostgreSQL that lost a majority with Admin.InitAbove or fencegate nodes init --above TOKEN"
	}
	return text
}

// Is matches [ErrNoQuorum].
func (e *QuorumError) Is(target error) bool { return target == ErrNoQuorum }

// Unwrap returns each node's cause.
func (e *QuorumError) Unwrap() []error {
	errs := make([]error, len(e.Causes))
	for i, c := range e.Causes {
		errs[i] = c
	}
	return errs
}

// MayReturn reports whether the quorum may return without an operator, once failed nodes are up again: enough nodes
// are supported, accept the login, and do not wait for an operator to admit them.
func (e *QuorumError) MayReturn() bool {
	broken := 0
	for _, c := range e.Causes {
		if node.NeedsOperator(c) {
			broken++
		}
	}
	return !e.NeedsAdmission && e.Nodes-broken >= e.Quorum
}
