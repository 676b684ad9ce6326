package lock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/fencegate/fencegate/fence"
)

// Park has a node grant nothing until its server has been restarted, after which it is admitted at once, if its
// data survived: its own locks bind, and its counters are whole. It is for the only node of a group, which has
// nobody to ask. [Locker.Readmit] takes a parked node back without a restart.
//
// The epoch is raised, and written on the node as the last of its data. Who admits the node raises the epoch
// again: only where that is the next one was nobody admitted in between, and no other restart of the same data.
// Otherwise, and where the data is older or gone, the quarantine is what it is for every lost node.
//
// It needs Config.Epochs. After an error the node may be parked.
func (l *Locker) Park(ctx context.Context, node string) error {
	n, err := l.nodeNamed(node)
	if err != nil {
		return err
	}
	if l.cfg.Epochs == nil || l.cfg.Embedded {
		return &fence.InvalidError{Field: "epochs", Reason: "are needed to park a node: set Config.Epochs"}
	}
	if err := l.park(ctx, n); err != nil {
		return fmt.Errorf("park %s: %w", n.name, err)
	}
	return nil
}

func (l *Locker) park(ctx context.Context, n *node) error {
	states := l.states(ctx)
	st := states[n.index]
	switch {
	case st.err != nil:
		return st.err
	case st.parked > 0:
		return errParked
	case !st.admitted:
		return errNotAdmitted
	}
	base, err := l.newBase(ctx, states, nil)
	if err != nil {
		return err
	}
	done, err := n.boundCall(ctx, st.incarnation, parkKind, []string{n.keys.h}, base>>epochShift)
	if err == nil && done != 1 {
		err = errNotAdmitted
	}
	return err
}

var (
	errParked      = errors.New("the node is parked already")
	errNotAdmitted = errors.New("the node is not admitted")
)

// parkedMark starts the incarnation of a node that is parked; then come the epoch, a colon, and the incarnation
// before.
const parkedMark = "parked:"

// parkedAs reads the incarnation of a node that is parked; 0: it is not.
func parkedAs(incarnation string) (epoch int64, before string) {
	text, ok := strings.CutPrefix(incarnation, parkedMark)
	if !ok {
		return 0, ""
	}
	text, before, _ = strings.Cut(text, ":")
	epoch, _ = strconv.ParseInt(text, 10, 64)
	return epoch, before
}

// unbroken reports whether the data of a node whose admission has begun is all that it ever granted: it was
// parked, or is durable, and the epoch that was raised after the admission began is the next one to that which
// it has. The record of the longest TTL says that PostgreSQL, which keeps the epoch, is the one of then.
func (l *Locker) unbroken(ctx context.Context, n *node, st nodeState, a Admission) bool {
	durable := st.parked == 0 && st.durable && n.cfg.Durable
	last := st.parked
	if durable {
		last = st.base >> epochShift
	}
	switch {
	case st.parked == 0 && !durable, l.cfg.Epochs == nil, a.Base>>epochShift != last+1:
		return false
	case l.longest.store != nil && (!a.longest.Kept || a.longest.Record != st.record):
		return false
	}
	return !durable || l.keeps(ctx, n, st)
}
