package etcdlock

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencegate/fencegate/internal/leases"
)

// ahead is how much longer an etcd lease lives at least than the leases that use it: for so long it can be shared.
const ahead = time.Second

// grants are etcd leases that were granted a moment ago, by their length in seconds.
type grants struct {
	client *clientv3.Client
	ctx    context.Context // ends with the source

	mu     sync.Mutex
	of     map[int64]*granted
	flying sync.WaitGroup
}

// granted is one etcd lease. Nobody keeps it alive, nor revokes it: it ends by itself, with the keys that have it then.
type granted struct {
	id    clientv3.LeaseID
	start time.Time // before it was asked for
	ends  time.Time // no sooner than that, by etcd's count
	ready chan struct{}
	err   error // valid, with id, after ready
}

// serves reports whether a lease of some length that begins now ends before the etcd lease does. What the clocks ran
// apart since it was granted counts, too.
func (g *granted) serves(ttl time.Duration) bool {
	age := time.Since(g.start)
	return g.start.Add(age + age/50 + ttl).Before(g.ends)
}

// good is a deadline for a lease that begins now: within its own time, and the etcd lease's.
func (g *granted) good(ttl time.Duration) time.Time {
	own, theirs := leases.Good(time.Now(), ttl), leases.Good(g.start, g.ends.Sub(g.start))
	if theirs.Before(own) {
		return theirs
	}
	return own
}

// get returns an etcd lease that lives for a time from now on.
func (g *grants) get(ctx context.Context, ttl time.Duration) (*granted, error) {
	seconds := int64((ttl + ahead + time.Second - 1) / time.Second)
	g.mu.Lock()
	one := g.of[seconds]
	if one == nil || !one.serves(ttl) {
		one = &granted{start: time.Now(), ready: make(chan struct{})}
		one.ends = one.start.Add(time.Duration(seconds) * time.Second)
		g.forget()
		g.of[seconds] = one
		g.flying.Go(func() { g.grant(one, seconds) })
	}
	g.mu.Unlock()
	select {
	case <-one.ready:
		return one, one.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// grant asks for an etcd lease, for whoever waits for it. It is bounded, and what it leaves behind ends by itself.
func (g *grants) grant(one *granted, seconds int64) {
	ctx, cancel := context.WithTimeoutCause(g.ctx, callTimeout, errNoAnswer)
	defer cancel()
	answer, err := g.client.Grant(clientv3.WithRequireLeader(ctx), seconds)
	if err != nil {
		one.err = explain(ctx, g.client, err)
		g.drop(one)
	} else {
		one.id = answer.ID
	}
	close(one.ready)
}

// drop has the next caller ask for another.
func (g *grants) drop(one *granted) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for seconds, other := range g.of {
		if other == one {
			delete(g.of, seconds)
		}
	}
}

// forget removes those that serve nobody any more.
func (g *grants) forget() {
	if g.of == nil {
		g.of = make(map[int64]*granted)
	}
	for seconds, other := range g.of {
		if time.Since(other.start) > 2*ahead {
			delete(g.of, seconds)
		}
	}
}
