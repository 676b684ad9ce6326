package lock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// roundTime is how long after a round's first message its answers count; it is the same in the whole group. A lost
// node is admitted based on the other nodes' locks. If they are asked at least roundTime after the admission began,
// their locks include every lease that a round could complete with the lost node's earlier answer.
const roundTime = time.Second

// askAfter is when the other nodes are asked, on this machine's clock: roundTime plus the possible clock drift.
func (l *Locker) askAfter() time.Duration {
	return roundTime + time.Duration(float64(roundTime)*l.cfg.DriftFactor) + driftFloor
}

// heldLock is a lock on a node: its key, its value, and its time to live; negative: it never ends.
type heldLock struct {
	key, value string
	left       time.Duration
}

// told is a node's list of its locks; ok: it is admitted, and was in one run throughout.
type told struct {
	ok    bool
	locks []heldLock
}

// askOthers reads the locks of all nodes but one.
func (l *Locker) askOthers(ctx context.Context, except *node) []told {
	all := make([]told, len(l.nodes))
	l.each(func(i int, n *node) {
		if n != except {
			locks, err := n.locks(ctx)
			all[i] = told{err == nil, locks}
		}
	})
	return all
}

// locks reads all locks of an admitted node, page by page. Each page proves that the run is the same.
func (n *node) locks(ctx context.Context) ([]heldLock, error) {
	st := n.state(ctx)
	if st.err != nil || !st.admitted {
		return nil, errors.Join(st.err, ErrQuarantined)
	}
	name := bindScripts(st.incarnation).sha[locksKind]
	var locks []heldLock
	for cursor := "0"; ; {
		page, err := n.client.EvalSha(ctx, name, []string{n.keys.h}, cursor, globQuote(n.keys.lockPrefix)+"*").Slice()
		if err != nil {
			return nil, serverError(err)
		}
		next, ok := page[0].(string)
		if !ok || len(page)%3 != 1 {
			return nil, ErrQuarantined
		}
		for i := 1; i < len(page); i += 3 {
			key, _ := page[i].(string)
			value, _ := page[i+1].(string)
			locks = append(locks, heldLock{key, value, time.Duration(integer(page, i+2)) * time.Millisecond})
		}
		if cursor = next; cursor == "0" {
			return locks, nil
		}
	}
}

// lasting is how long a lock that a lost node granted may still count, according to the other nodes. It is not ok if
// too few of them answered, or one has a lock that never expires.
//
// A lease that needed the lost node has locks on N/2 others, so at least one of any N/2+1 others has such a lock.
// Locks on a minority count too.
func (l *Locker) lasting(all []told) (left time.Duration, ok bool) {
	asked := 0
	for _, t := range all {
		if !t.ok {
			continue
		}
		asked++
		for _, held := range t.locks {
			if held.left < 0 {
				return 0, false
			}
			left = max(left, held.left+time.Millisecond)
		}
	}
	return left, asked >= l.quorum
}

// shorten shortens a node's quarantine, if enough other nodes answered.
func (l *Locker) shorten(ctx context.Context, n *node, a admission) error {
	if a.intact {
		return n.shorten(ctx, a, 0)
	}
	left, ok := l.lasting(l.askOthers(ctx, n))
	if !ok {
		return nil
	}
	return n.shorten(ctx, a, left)
}

// shorten runs shorten.lua.
func (n *node) shorten(ctx context.Context, a admission, left time.Duration) error {
	mark := fmt.Sprintf("%s:%d", a.nonce, a.quarantine.Milliseconds())
	_, err := n.boundCall(ctx, a.nonce, shortenKind, []string{n.keys.h, n.keys.q}, mark, left.Milliseconds())
	return err
}

// maxGiven bounds one call of give.lua, which blocks the node's other clients.
const maxGiven = 256

// give copies the locks of admitted nodes to one that is about to be admitted. It is best effort: a lease whose lock
// is not copied continues on the nodes that have it.
func (l *Locker) give(ctx context.Context, n *node, a admission) ([]heldLock, error) {
	given := elect(l.askOthers(ctx, n), a.longest)
	for locks := given; len(locks) > 0; {
		part := locks[:min(maxGiven, len(locks))]
		locks = locks[len(part):]
		names := []string{n.keys.h}
		args := make([]any, 0, 2*len(part))
		for _, held := range part {
			names = append(names, held.key)
			args = append(args, held.value, held.left.Milliseconds())
		}
		code, err := n.boundCall(ctx, a.nonce, giveKind, names, args...)
		switch {
		case err != nil:
			return nil, err
		case code < 0:
			return nil, errRace
		}
	}
	return given, nil
}

// takeBack deletes the copied locks of leases that ended meanwhile, and returns the rest: their release did not reach
// the node because it was not admitted. If takeBack fails, such a lock stays until its TTL is over.
func (l *Locker) takeBack(ctx context.Context, n *node, a admission, given []heldLock) (rest []heldLock) {
	if len(given) == 0 {
		return nil
	}
	all := l.askOthers(ctx, n)
	if _, ok := l.lasting(all); !ok {
		return given
	}
	held := make(map[string]bool)
	for _, t := range all {
		for _, one := range t.locks {
			held[one.key+one.value] = true
		}
	}
	for _, one := range given {
		if held[one.key+one.value] {
			rest = append(rest, one)
			continue
		}
		resource := strings.TrimPrefix(one.key, n.keys.lockPrefix)
		names := []string{n.keys.h, one.key, n.keys.waitPrefix + resource, n.keys.waiting}
		_, _ = n.boundCall(ctx, a.nonce, opRelease, names, one.value[:ownerLength], resource, n.keys.wakePrefix)
	}
	return rest
}

// elect chooses for each resource the owner that most nodes name, and among equals the one whose lock lasts longest.
// It leaves out a lock that never expires, or lasts longer than a lease can because its node's clock was set back:
// copying it would turn a minority's lock into a majority's.
func elect(all []told, longest time.Duration) []heldLock {
	type candidate struct {
		heldLock

		votes int
	}
	found := make(map[string]map[string]*candidate) // by key and owner
	for _, t := range all {
		for _, held := range t.locks {
			if held.left <= 0 || held.left > longest || len(held.value) < ownerLength || !t.ok {
				continue
			}
			if found[held.key] == nil {
				found[held.key] = make(map[string]*candidate)
			}
			owner := held.value[:ownerLength]
			c := found[held.key][owner]
			if c == nil {
				c = &candidate{heldLock: held}
				found[held.key][owner] = c
			}
			c.votes++
			c.left = max(c.left, held.left)
		}
	}
	chosen := make([]heldLock, 0, len(found))
	for _, owners := range found {
		var best *candidate
		for _, c := range owners {
			if best == nil || c.votes > best.votes || c.votes == best.votes && c.left > best.left {
				best = c
			}
		}
		chosen = append(chosen, best.heldLock)
	}
	slices.SortFunc(chosen, func(a, b heldLock) int { return strings.Compare(a.key, b.key) })
	return chosen
}

// boundCall calls a script of an incarnation, and returns its first number. If the node was restarted since, the
// error is [errRestarted].
func (n *node) boundCall(ctx context.Context, nonce string, kind opKind, names []string, args ...any) (int64, error) {
	values, err := n.client.EvalSha(ctx, bindScripts(nonce).sha[kind], names, args...).Slice()
	switch {
	case redis.HasErrorPrefix(err, "NOSCRIPT"):
		return 0, errRestarted
	case err != nil:
		return 0, serverError(err)
	}
	return integer(values, 0), nil
}

// agreeEpoch returns an epoch above that of every completed token, if no store keeps it. It reads the epoch on N/2+1
// admitted nodes, promises the next one to as many, and checks these again, so that at one moment all of them had it.
// except, the node to be admitted, is not among them; nil: there is none.
func (l *Locker) agreeEpoch(ctx context.Context, except *node, above int64) (int64, error) {
	states := l.read(ctx) // in any mode: a sweep asks too
	ask := func(epoch int64) (highest int64, err error) {
		var mu sync.Mutex
		var missing []string
		known := 0
		l.each(func(i int, n *node) {
			if n == except {
				return
			}
			code, err := int64(-1), states[i].err
			if err == nil && states[i].admitted {
				code, err = n.boundCall(ctx, states[i].incarnation, epochKind, []string{n.keys.h}, epoch)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil || code < 0 || code < epoch {
				states[i].admitted = false // it counts in no later step either
				missing = append(missing, n.name)
				return
			}
			known++
			highest = max(highest, code)
		})
		if known < l.quorum {
			return 0, fmt.Errorf("the epoch is kept by the nodes, and %d other ones are needed: %s did not take part", l.quorum, strings.Join(missing, ", "))
		}
		return highest, nil
	}
	highest, err := ask(0)
	if err != nil {
		return 0, err
	}
	epoch := max(highest, above) + 1
	if epoch > maxEpoch {
		return epoch, nil // the caller reports that it is unusable
	}
	for range 2 {
		if _, err := ask(epoch); err != nil {
			return 0, err
		}
	}
	return epoch, nil
}
