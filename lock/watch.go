package lock

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// watch admits lost nodes also while no leases are requested; requests find lost nodes by their answers. It checks
// each node once in one to two seconds, until the Locker is closed. A group in which no node was ever admitted is
// left to [Locker.Init], which needs no quarantine before the first admission.
func (l *Locker) watch() {
	select {
	case <-l.naming.known:
	case <-l.ctx.Done():
		return
	}
	looks := make([]looked, len(l.nodes))
	for pause(l.ctx, time.Second+l.dice.random(time.Second)) == nil {
		l.each(func(i int, n *node) {
			if !l.looksAfter(n) {
				looks[i].again(l.ctx, n)
			}
		})
		used := false
		for i := range looks {
			used = used || looks[i].used
		}
		for i, n := range l.nodes {
			if looks[i].lost(used) {
				l.nodeLost(n)
			}
		}
		var group limits
		for i := range looks {
			group = group.or(looks[i].limits)
		}
		if group.longest > 0 {
			l.noted.Store(&group)
		}
	}
}

// looksAfter reports whether a node's admission is in progress in this process.
func (l *Locker) looksAfter(n *node) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.admitting[n.index]
}

// looked is the result of the checks of a node.
type looked struct {
	admitted *bound // when it was last seen admitted; nil: never
	used     bool   // it was admitted once, or an admission has begun
	limits   limits // when it was last seen admitted
	missing  int    // checks in a row that found it not admitted
}

// lost reports whether the node has to be admitted. An empty node that this process never saw admitted may be in the
// middle of a first start: it needs a second check.
func (s *looked) lost(used bool) bool {
	return s.missing > 0 && s.used || s.missing > 1 && used
}

func (s *looked) again(ctx context.Context, n *node) {
	if s.admitted != nil && !n.cfg.watched() {
		if is, now := n.is(ctx, s.admitted); is {
			s.limits, s.missing = now, 0
			return
		}
	}
	st := n.state(ctx)
	if st.err != nil {
		s.missing = 0
		return
	}
	s.used = s.used || st.incarnation != "" || st.quarantine > 0
	if s.missing++; st.admitted {
		s.admitted, s.limits, s.missing = bindScripts(st.incarnation), st.limits, 0
	}
}

// is reports whether the node is still admitted in a known incarnation, and its limits. It is the cheap check: one
// round trip.
func (n *node) is(ctx context.Context, b *bound) (bool, limits) {
	ctx, cancel := context.WithTimeout(ctx, stallTimeout)
	defer cancel()
	var marker *redis.SliceCmd
	var scripts *redis.BoolSliceCmd
	_, err := n.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		marker = p.HMGet(ctx, n.keys.h, "@incarnation", "@maxttl", "@longest")
		scripts = p.ScriptExists(ctx, b.sha[opAcquire])
		return nil
	})
	if err != nil || len(marker.Val()) != 3 || marker.Val()[0] != any(b.nonce) || !scripts.Val()[0] {
		return false, limits{}
	}
	return true, limits{milliseconds(marker.Val()[1]), milliseconds(marker.Val()[2])}
}
