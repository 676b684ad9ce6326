package lock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/fencegate/fencegate/fence"
)

// Park makes a node grant nothing until its server has been restarted. Then the node is admitted at once if its data
// survived, because it still has its own locks and all its counters. It is for the only node of a group, which has no
// other nodes to ask. [Locker.Readmit] admits a parked node without a restart.
//
// Park raises the epoch and writes it to the node as the last of its data. The admission raises the epoch again. If
// that gives the next epoch, no node was admitted and the data was not restarted in between. Otherwise, or if the data
// is older or gone, the node is quarantined like every lost node.
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

// parkedMark is the prefix of a parked node's incarnation; the epoch, a colon, and the previous incarnation follow.
const parkedMark = "parked:"

// parkedAs parses the incarnation of a parked node; 0: it is not parked.
func parkedAs(incarnation string) (epoch int64, before string) {
	text, ok := strings.CutPrefix(incarnation, parkedMark)
	if !ok {
		return 0, ""
	}
	text, before, _ = strings.Cut(text, ":")
	epoch, _ = strconv.ParseInt(text, 10, 64)
	return epoch, before
}

// unbroken reports whether a node whose admission has begun still has everything that it ever granted: it was parked,
// or is durable, and the epoch that was raised after the admission began is the one after the node's. The record of
// the longest TTL shows that PostgreSQL, which keeps the epoch, has not been replaced since.
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
