package admission

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/lock/internal/node"
)

// askAfter is when the other nodes are asked, on this machine's clock: roundTime plus the possible clock drift.
func (g *Group) AskAfter() time.Duration {
	return RoundTime + time.Duration(float64(RoundTime)*g.cfg.DriftFactor) + DriftFloor
}

// lockList is a node's list of its locks; ok: it is admitted, and was in one run throughout.
type lockList struct {
	ok    bool
	locks []node.HeldLock
}

// askOthers reads the locks of all nodes but one.
func (g *Group) askOthers(ctx context.Context, except *node.Node) []lockList {
	all := make([]lockList, len(g.Nodes))
	g.each(func(i int, n *node.Node) {
		if n != except {
			locks, err := n.Locks(ctx)
			all[i] = lockList{err == nil, locks}
		}
	})
	return all
}

// lasting is how long a lock that a lost node granted may still count, according to the other nodes. It is not ok if
// too few of them answered, or one has a lock that never expires.
//
// A lease that needed the lost node has locks on N/2 others, so at least one of any N/2+1 others has such a lock.
// Locks on a minority count too.
func (g *Group) lasting(all []lockList) (left time.Duration, ok bool) {
	asked := 0
	for _, t := range all {
		if !t.ok {
			continue
		}
		asked++
		for _, held := range t.locks {
			if held.Left < 0 {
				return 0, false
			}
			left = max(left, held.Left+time.Millisecond)
		}
	}
	return left, asked >= g.Quorum
}

// shorten shortens a node's quarantine, if enough other nodes answered.
func (g *Group) shorten(ctx context.Context, n *node.Node, a Admission) error {
	if a.intact {
		return n.Shorten(ctx, a.Nonce, a.quarantine, 0)
	}
	left, ok := g.lasting(g.askOthers(ctx, n))
	if !ok {
		return nil
	}
	return n.Shorten(ctx, a.Nonce, a.quarantine, left)
}

// maxGiven bounds one call of give.lua, which blocks the node's other clients.
const maxGiven = 256

// give copies the locks of admitted nodes to one that is about to be admitted. It is best effort: a lease whose lock
// is not copied continues on the nodes that have it.
func (g *Group) give(ctx context.Context, n *node.Node, a Admission) ([]node.HeldLock, error) {
	given := elect(g.askOthers(ctx, n), a.longest)
	for locks := given; len(locks) > 0; {
		part := locks[:min(maxGiven, len(locks))]
		locks = locks[len(part):]
		if err := n.Give(ctx, a.Nonce, part); err != nil {
			return nil, err
		}
	}
	return given, nil
}

// takeBack deletes the copied locks of leases that ended meanwhile, and returns the rest: their release did not reach
// the node because it was not admitted. If takeBack fails, such a lock stays until its TTL is over.
func (g *Group) takeBack(ctx context.Context, n *node.Node, a Admission, given []node.HeldLock) (rest []node.HeldLock) {
	if len(given) == 0 {
		return nil
	}
	all := g.askOthers(ctx, n)
	if _, ok := g.lasting(all); !ok {
		return given
	}
	held := make(map[string]bool)
	for _, t := range all {
		for _, one := range t.locks {
			held[one.Key+one.Value] = true
		}
	}
	for _, one := range given {
		if held[one.Key+one.Value] {
			rest = append(rest, one)
			continue
		}
		_ = n.TakeBack(ctx, a.Nonce, one)
	}
	return rest
}

// elect chooses for each resource the owner that most nodes name, and among equals the one whose lock lasts longest.
// It leaves out a lock that never expires, or lasts longer than a lease can because its node's clock was set back:
// copying it would turn a minority's lock into a majority's.
func elect(all []lockList, longest time.Duration) []node.HeldLock {
	type candidate struct {
		node.HeldLock

		votes int
	}
	found := make(map[string]map[string]*candidate) // by key and owner
	for _, t := range all {
		for _, held := range t.locks {
			if held.Left <= 0 || held.Left > longest || len(held.Value) < node.OwnerLength || !t.ok {
				continue
			}
			if found[held.Key] == nil {
				found[held.Key] = make(map[string]*candidate)
			}
			owner := held.Value[:node.OwnerLength]
			c := found[held.Key][owner]
			if c == nil {
				c = &candidate{HeldLock: held}
				found[held.Key][owner] = c
			}
			c.votes++
			c.Left = max(c.Left, held.Left)
		}
	}
	chosen := make([]node.HeldLock, 0, len(found))
	for _, owners := range found {
		var best *candidate
		for _, c := range owners {
			if best == nil || c.votes > best.votes || c.votes == best.votes && c.Left > best.Left {
				best = c
			}
		}
		chosen = append(chosen, best.HeldLock)
	}
	slices.SortFunc(chosen, func(a, b node.HeldLock) int { return strings.Compare(a.Key, b.Key) })
	return chosen
}
