package lock

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// watch finds lost nodes also while no leases are requested, and what the answers to requests don't show: that a node
// may evict keys, or that its reign is over. It checks each node once in one to two seconds, until the Locker is closed,
// and with an Armer admits the lost ones. A group in which no node was ever admitted is left to [Locker.Init], which
// needs no quarantine before the first admission.
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
				looks[i].again(l, n)
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

func (s *looked) again(l *Locker, n *node) {
	begun := l.clock.Now()
	if s.admitted != nil {
		if is, now, reign := n.is(l.ctx, s.admitted); is {
			s.limits, s.missing = now, 0
			n.saw.Store(&sight{reign, begun})
			return
		}
	}
	st := n.state(l.ctx)
	if l.keepsReign(l.ctx, n, st) {
		return
	}
	if st.over != nil && !st.said.replica {
		_, _ = l.depose(l.ctx, n, st) // the next check tries again
	}
	if st.err == nil && !st.admitted || st.said.unfit() != nil {
		n.drop()
	}
	if st.err != nil {
		s.missing = 0
		return
	}
	s.used = s.used || st.incarnation != "" || st.quarantine > 0
	if s.missing++; st.admitted {
		s.admitted, s.limits, s.missing = bindScripts(st.incarnation), st.limits, 0
		n.saw.Store(&sight{st.reign, begun})
	}
}

// is reports whether the node is still admitted in a known incarnation, its limits, and its reign. It is the cheap
// check: one round trip.
func (n *node) is(ctx context.Context, b *bound) (is bool, now limits, reign string) {
	ctx, cancel := context.WithTimeout(ctx, stallTimeout)
	defer cancel()
	var marker *redis.SliceCmd
	var scripts *redis.BoolSliceCmd
	var info *redis.StringCmd
	_, _ = n.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		marker = p.HMGet(ctx, n.keys.h, "@incarnation", "@maxttl", "@longest", "@reign")
		scripts = p.ScriptExists(ctx, b.sha[opAcquire])
		info = p.Info(ctx, accountSections...) // may be refused
		return nil
	})
	if fields := marker.Val(); len(fields) == 4 && len(scripts.Val()) == 1 {
		reign, _ = fields[3].(string)
		now = limits{milliseconds(fields[1]), milliseconds(fields[2])}
		said := readAccount(info.Val())
		is = fields[0] == any(b.nonce) && scripts.Val()[0] && said.unfit() == nil && said.over(reign) == nil
	}
	return is, now, reign
}
