package admission

import (
	"context"
	"errors"

	"github.com/fencegate/fencegate/lock/internal/node"
)

// newNonce creates the name of a new incarnation in this Locker's mode.
func (g *Group) NewNonce() string {
	if g.cfg.Nonces != nil {
		return node.NonceOf(g.cfg.BestEffort, g.cfg.Nonces())
	}
	return node.NewNonce(g.cfg.BestEffort)
}

// inOtherMode is the error of a node that is marked for the other mode: no node of its group is admitted beside it.
func inOtherMode(states []node.State) error {
	for _, st := range states {
		if errors.Is(st.Err, node.ErrMode) {
			return st.Err
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

// errUnused: the nodes of a new group take the mode of the Locker that admits them.
var errUnused = errors.New("no node was admitted yet: new nodes take the mode of the process that admits them")

// Mark is admin.Admin.Mark.
func (g *Group) Mark(ctx context.Context, bestEffort bool) error {
	if err := g.AwaitKeys(ctx); err != nil {
		return err
	}
	states := g.Read(ctx)
	used := false
	for _, st := range states {
		used = used || st.Incarnation != ""
	}
	errs := make([]error, len(g.Nodes))
	g.each(func(i int, n *node.Node) {
		if errs[i] = states[i].Err; errs[i] == nil && used {
			errs[i] = n.Mark(ctx, states[i].Incarnation, bestEffort)
		}
		if errs[i] != nil {
			errs[i] = &node.NodeError{Node: n.Name, Err: errs[i]}
		}
	})
	err := errors.Join(errs...)
	if err == nil && !used {
		err = errUnused
	}
	return err
}
