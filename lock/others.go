package lock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// roundTime is for how long after a round's first message its answers count, one
// constant of the group. A node that lost its data or its run is admitted by what the
// others say: what they are asked no earlier than that after its admission began leaves
// out no answer that a round may still add to one which the node gave before.
const roundTime = time.Second

// askAfter is when others are asked, on this machine's clock: a round's time, and what
// clocks may drift apart meanwhile.
func (l *Locker) askAfter() time.Duration {
	return roundTime + time.Duration(float64(roundTime)*l.cfg.DriftFactor) + driftFloor
}

// heldLock is a lock on a node: its key, its value, and its time to live; negative: it never ends.
type heldLock struct {
	key, value string
	left       time.Duration
}

// told is what a node says of its locks; ok: it is admitted, and was in one run throughout.
type told struct {
	ok    bool
	locks []heldLock
}

// askOthers has all nodes but one tell their locks.
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

// locks reads all locks of an admitted node, page by page, each of which proves its run.
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

// lasting is how long a lock may still count that a lost node has granted, as the others
// say. It is not ok where too few of them do, or one has a lock that never ends.
//
// A lease that the node was needed for has locks on N/2 others, and of any N/2+1 others
// one at least has such a lock. Locks that a minority holds count too.
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

// shorten ends a node's quarantine earlier, where enough others know when, or the longest TTL in use is recorded.
func (l *Locker) shorten(ctx context.Context, n *node, a Admission) error {
	if a.intact {
		return n.shorten(ctx, a, 0)
	}
	left, ok := l.lasting(l.askOthers(ctx, n))
	if a.longest.Kept {
		recorded := a.longest.TTL - time.Since(a.begun.mono) + time.Millisecond
		if !ok || recorded < left {
			left, ok = recorded, true
		}
	}
	if !ok {
		return nil
	}
	return n.shorten(ctx, a, left)
}

// shorten runs shorten.lua.
func (n *node) shorten(ctx context.Context, a Admission, left time.Duration) error {
	mark := fmt.Sprintf("%s:%d", a.Nonce, a.Quarantine.Milliseconds())
	_, err := n.boundCall(ctx, a.Nonce, shortenKind, []string{n.keys.h, n.keys.q}, mark, left.Milliseconds())
	return err
}

// maxGiven bounds one call of give.lua, which other clients of the node wait for.
const maxGiven = 256

// give plants the locks of admitted nodes on one that is about to be admitted. It is best
// effort: a lease whose lock is not given goes on with the nodes that have it. The quarantine
// was no shorter than the longest lease.
func (l *Locker) give(ctx context.Context, n *node, a Admission) ([]heldLock, error) {
	given := elect(l.askOthers(ctx, n), max(a.Quarantine, l.cfg.MaxTTL))
	for locks := given; len(locks) > 0; {
		part := locks[:min(maxGiven, len(locks))]
		locks = locks[len(part):]
		names := []string{n.keys.h}
		args := make([]any, 0, 2*len(part))
		for _, held := range part {
			names = append(names, held.key)
			args = append(args, held.value, held.left.Milliseconds())
		}
		code, err := n.boundCall(ctx, a.Nonce, giveKind, names, args...)
		switch {
		case err != nil:
			return nil, err
		case code < 0:
			return nil, errRace
		}
	}
	return given, nil
}

// takeBack deletes what was given of leases that ended meanwhile, and returns the rest:
// their release did not reach a node that was not admitted. Where it fails such a lock
// lasts for its TTL.
func (l *Locker) takeBack(ctx context.Context, n *node, a Admission, given []heldLock) (rest []heldLock) {
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
		_, _ = n.boundCall(ctx, a.Nonce, opRelease, names, one.value[:ownerLength], resource, n.keys.wakePrefix)
	}
	return rest
}

// elect chooses for each resource the owner that most nodes name, and then the one whose
// lock lasts longest. A lock that never ends is given to nobody, and neither is one that lasts
// longer than a lease can, because its node's clock was set back: a minority's would become a
// majority's.
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
	return chosen
}

// boundCall calls a script of an incarnation, and returns its first number. A node that
// has lost that run since is [errRestarted].
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

// agreeEpoch is an epoch above all that a completed token may have, where no store
// keeps it: it is read on N/2+1 admitted nodes, one more is promised to as many, and
// these are looked at again, so that at one moment all of them had it. The node that
// is to be admitted with it is not among them; nil: none is.
func (l *Locker) agreeEpoch(ctx context.Context, except *node, above int64) (int64, error) {
	states := l.read(ctx) // whatever the mode: a sweep asks too
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
		return epoch, nil // the caller says that it is unusable
	}
	for range 2 {
		if _, err := ask(epoch); err != nil {
			return 0, err
		}
	}
	return epoch, nil
}
