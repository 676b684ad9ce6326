package lock_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/lock"
)

// The rules of a simulation. Those of tokens and of a lease's own deadline hold whatever happens.
//
//   - Tokens of a resource are unique; an acquisition that completed before another's last attempt began has the lower
//     one.
//   - A lease ends by its deadline on a clock that counts the time for which its process was suspended. The deadline
//     counts from the moment before the first message of the last phase 1, or of the last extension. No round counts an
//     answer later than a second after its first message.
//   - While a lease is believed, so many nodes have its lock, or are not admitted, that the others are no quorum, and
//     each such lock outlives the belief by the whole margin. So no two leases of a resource are believed at one time.
//     This is void where a clock of a node jumps by more than the margin, and for groups of best effort. The loss of any
//     nodes and any messages does not void it.
//   - A node that lost its data or its run grants nothing for a round's time at least, and for the group's longest TTL
//     unless a quorum of the others was up and admitted at some time since.
//   - Callers that wait for a resource in one Locker get it in the order of their calls.
//   - A caller that waits for a resource that is free gets it within simFree. If nothing ever went wrong, within
//     simCalm.
//   - When all faults have ended, every node is admitted and every caller served. A lock that was given back is gone,
//     and no lock lasts longer than the longest TTL. Close returns, and nothing of the Lockers is left running.
const (
	// simCalm is how long the call of a release may take, with the acquisition that it causes: some messages, and a
	// second try if the call overtakes the release on another node.
	simCalm = 200 * time.Millisecond

	// simFree is how long a waiter may miss that a resource is free, once nothing has gone wrong for simHealthy: it looks
	// every 1.5 s at most, those before it in the queue may be gone, which shows after 3 s, and failed tries wait 250 ms
	// at most.
	simFree = 6 * time.Second

	// simHealthy is how long the effects of a fault last: a connection notices within a stall, and a node that failed is
	// no home for a second.
	simHealthy = 5 * time.Second

	// simCloses is how long Close may take: callers have 2 s, and each connection a stall.
	simCloses = 6 * time.Second

	// simRound is how long after a round's first message its answers count.
	simRound = time.Second
)

// simLease is a lease that a Locker believes to have.
type simLease struct {
	*lock.Lease

	locker   int
	resource string
	token    fence.Token
	owner    string
	gone     bool          // its holder has given it back
	ttl      time.Duration // of its extensions; 0: they have several
	deadline time.Time     // as it was last seen
	asleep   time.Duration // for which its process was suspended since the deadline moved
	vague    bool          // it may have been suspended in the round that moved the deadline
}

// simToken is one acquisition.
type simToken struct {
	token       fence.Token
	begun, done time.Time
}

// simJudge is what the rules need.
type simJudge struct {
	tokens   map[string][]simToken
	given    map[string]bool // owners whose locks were given back
	slept    []suspension    // of all Lockers
	back     time.Duration   // by which clocks jumped back
	free     map[string]time.Time
	operated map[*simNode]bool
	closing  bool
}

func newSimJudge() simJudge {
	return simJudge{tokens: map[string][]simToken{}, given: map[string]bool{}, free: map[string]time.Time{}, operated: map[*simNode]bool{}}
}

func (s *sim) failf(format string, args ...any) {
	if s.broken == "" {
		s.broken = fmt.Sprintf(format, args...)
		s.logf("   BROKEN: %s", s.broken)
	}
}

// real is how much time has passed since, with that in which no Locker ran.
func (s *sim) real(since time.Time) time.Duration {
	d := time.Since(since)
	for _, p := range s.slept {
		if !p.at.Before(since) {
			d += p.d
		}
	}
	return d
}

// admit judges an acquisition, and takes its lease among those that are believed.
func (s *sim) admit(c *simCall, resource string, l *lock.Lease) *simLease {
	s.counts.acquired++
	if c.waited && c.waits && c.ended.Sub(c.came) > simSlow {
		s.counts.waited++
	}
	ref := l.Ref()
	h := &simLease{Lease: l, locker: c.locker, resource: resource, token: ref.Token, owner: ref.Owner, ttl: c.ttl, deadline: l.Deadline().Time()}
	s.logf("l%d token %d of %s", c.locker, h.token, resource)
	t := simToken{token: h.token, begun: c.attempts[resource], done: c.ended}
	for _, before := range s.tokens[resource] {
		switch {
		case before.token == t.token:
			s.failf("token %d of %s was given twice", t.token, resource)
		case before.done.Before(t.begun) && before.token > t.token:
			s.failf("token %d of %s after %d", t.token, resource, before.token)
		}
	}
	s.tokens[resource] = append(s.tokens[resource], t)
	took := c.took[resource]
	if h.asleep = s.lockers[c.locker].slept(took); len(c.resources) > 1 {
		h.vague = s.lockers[c.locker].slept(c.came) > 0 // it was extended since
	}
	valid := s.lockers[c.locker].Validity(lock.WithTTL(c.ttl))
	if len(c.resources) == 1 {
		if want := took.Add(valid); !h.deadline.Equal(want) {
			s.failf("the deadline of token %d of %s is %v from when it should be", h.token, resource, h.deadline.Sub(want))
		}
		if d := c.ended.Sub(took) + s.lockers[c.locker].slept(took); s.plan.armed && d > simRound {
			s.failf("token %d of %s came %v after its first message", h.token, resource, d)
		}
	}
	for _, other := range s.calls {
		if c.waits && other.waits && !other.bounded && other.locker == c.locker && other.resources[0] == resource && other.id < c.id {
			s.failf("call %d of l%d got %s before call %d, which came before", c.id, c.locker, resource, other.id)
		}
	}
	s.leases = append(s.leases, h)
	return h
}

// judge looks at everything that may break a rule at this moment.
func (s *sim) judge() {
	if s.broken != "" {
		return
	}
	s.judgeNodes()
	s.judgeLeases()
	if !s.closing {
		s.judgeQueues()
	}
}

const simKeys = lock.DefaultKeyPrefix + ":"

// incarnation is the one that a node has admitted: "" for none.
func (n *simNode) incarnation() string {
	if m := n.Mini(); m != nil {
		return m.HGet(simKeys+"h", "@incarnation")
	}
	return ""
}

// admitted reports whether a node may grant something.
func (s *sim) admitted(n *simNode) bool { return n.up && n.loss == nil && n.incarnation() != "" }

// lost notes that a node loses its data or its run.
func (s *sim) lost(n *simNode) {
	s.faulty(0)
	before := n.incarnation()
	if n.loss != nil {
		before = n.loss.before
	}
	n.loss = &simLoss{at: time.Now(), before: before, others: map[int]bool{}}
}

func (s *sim) judgeNodes() {
	for i, n := range s.nodes {
		if n.loss != nil {
			if now := n.incarnation(); n.up && now != "" && now != n.loss.before {
				s.readmitted(n)
			}
		}
		if s.admitted(n) {
			for _, o := range s.nodes {
				if o.loss != nil {
					o.loss.others[i] = true
				}
			}
		}
		if n.loss != nil || !n.up {
			s.faulty(0)
		}
	}
}

// readmitted judges the length of a quarantine.
func (s *sim) readmitted(n *simNode) {
	s.counts.readmitted++
	took, others := s.real(n.loss.at), len(n.loss.others)
	s.logf("   %s is admitted after %v, with %d others", n.name, took, others)
	n.loss = nil
	switch least := s.plan.maxTTL; {
	case !s.plan.strict():
	case took < simRound:
		s.failf("%s was admitted %v after its loss", n.name, took)
	case took < least && others < len(s.nodes)/2+1:
		s.failf("%s was admitted %v after its loss, and only %d others were there to ask", n.name, took, others)
	}
}

func (s *sim) judgeLeases() {
	live := s.leases[:0]
	for _, h := range s.leases {
		_, err := h.Grant()
		if err != nil {
			if !h.gone {
				s.counts.lost++
				s.logf("l%d token %d of %s is over: %s", h.locker, h.token, h.resource, outcomeOf(err))
			}
			h.gone = true
			continue
		}
		live = append(live, h)
	}
	clear(s.leases[len(live):])
	s.leases = live
	for i, h := range s.leases {
		s.judgeDeadline(h)
		if !s.plan.strict() {
			continue
		}
		for _, o := range s.leases[:i] {
			if o.resource == h.resource {
				s.failf("l%d and l%d both have %s, with tokens %d and %d", o.locker, h.locker, h.resource, o.token, h.token)
			}
		}
		s.judgeLocks(h)
	}
}

func (s *sim) judgeDeadline(h *simLease) {
	if moved := h.Deadline().Time(); !moved.Equal(h.deadline) {
		h.deadline, h.asleep = moved, 0
		h.vague = s.lockers[h.locker].slept(time.Now().Add(-simRound)) > 0
		if h.ttl > 0 {
			begun := moved.Add(-s.lockers[h.locker].Validity(lock.WithTTL(h.ttl)))
			if took := time.Since(begun) + s.lockers[h.locker].slept(begun); took > simRound || took < 0 {
				s.failf("token %d of %s was extended %v after the first message", h.token, h.resource, took)
			}
		}
	}
	if left := time.Until(h.deadline) - h.asleep; left <= 0 {
		s.failf("token %d of %s is believed %v after its deadline", h.token, h.resource, -left)
	}
}

// judgeLocks judges that nobody else can get a believed lease, now or before it ends.
func (s *sim) judgeLocks(h *simLease) {
	open := 0
	var left []time.Duration
	least := time.Until(h.deadline) - h.asleep + simMargin
	for _, n := range s.nodes {
		if !s.admitted(n) {
			continue
		}
		key := simKeys + "lock:" + h.resource
		value, _ := n.Mini().Get(key)
		ttl := n.Mini().TTL(key)
		if mine := strings.HasPrefix(value, h.owner); mine {
			left = append(left, ttl)
			if h.vague || ttl >= least {
				continue
			}
		}
		open++
	}
	if open > len(s.nodes)/2 {
		s.failf("token %d of %s is believed for %v, and its locks last %v: %d nodes are open", h.token, h.resource, time.Until(h.deadline)-h.asleep, left, open)
	}
}

// simMargin is the margin of the shortest TTL, less the rounding of nodes.
const simMargin = time.Second/100 + time.Millisecond

func (s *sim) judgeQueues() {
	calm := time.Since(s.until) > simHealthy || s.plan.calm
	bound := simFree
	if s.plan.calm {
		bound = simCalm
	}
	waiting := map[string]bool{}
	if calm {
		for _, c := range s.calls {
			if c.waits {
				waiting[c.resources[0]] = true
			}
		}
	}
	for i := range s.plan.resources {
		r := fmt.Sprintf("r%d", i)
		if !waiting[r] || slices.ContainsFunc(s.nodes, func(n *simNode) bool { return n.Mini().Exists(simKeys + "lock:" + r) }) {
			delete(s.free, r)
			continue
		}
		since, ok := s.free[r]
		if !ok {
			s.free[r] = time.Now()
		} else if d := time.Since(since); d > bound {
			s.failf("%s is free for %v, and has a waiter: %s", r, d, s.pending())
		}
	}
}

// pending names the calls in progress, and the nodes that are out.
func (s *sim) pending() string {
	var all []string
	for _, id := range slices.Sorted(maps.Keys(s.calls)) {
		c := s.calls[id]
		all = append(all, fmt.Sprintf("l%d call %d %s %v", c.locker, id, c.what, c.resources))
	}
	for _, n := range s.nodes {
		if !s.admitted(n) {
			all = append(all, n.name+" is not admitted")
		}
	}
	return strings.Join(all, ", ")
}

// quiet lets a healed group come to rest.
func (s *sim) quiet() {
	s.spin(func() bool {
		return !slices.ContainsFunc(s.nodes, func(n *simNode) bool { return !s.admitted(n) })
	}, 2*s.plan.maxTTL+2*time.Minute+s.back, "every node is admitted")
	s.spin(s.idle, time.Duration(len(s.calls)+1)*(s.plan.maxTTL*2+simFree)+s.back, "every caller is served")
	for _, h := range slices.Clone(s.leases) {
		s.release(h)
		s.sleep(time.Microsecond) // two at one moment would be in the scheduler's order
	}
	s.spin(s.idle, 10*time.Second, "every lease is given back")
	if s.plan.calm {
		s.sleep(time.Second)
		s.givenBack()
	}
}

// givenBack judges that a lock that was given back is gone.
func (s *sim) givenBack() {
	for _, n := range s.nodes {
		for _, key := range n.Mini().Keys() {
			if value, ok := strings.CutPrefix(key, simKeys+"lock:"); ok {
				text, _ := n.Mini().Get(key)
				if s.given[text[:32]] {
					s.failf("%s has a lock of %s that was given back", n.name, value)
				}
			}
		}
	}
}

// ghosts judges that no lock lasts longer than the longest TTL.
func (s *sim) ghosts() {
	s.spin(func() bool { return s.flying == 0 }, simCloses, "every message has arrived") // also a late acquire
	s.sleep(s.plan.maxTTL + s.back + time.Second)
	for _, n := range s.nodes {
		for _, key := range n.Mini().Keys() {
			if strings.HasPrefix(key, simKeys+"lock:") {
				s.failf("%s has %s after all TTLs", n.name, key)
			}
		}
	}
}
