package etcdlock

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/internal/leases"
)

// ahead is how much longer an etcd lease lives than the leases that use it. It can be shared for that time.
const ahead = time.Second

// grants are recently granted etcd leases, by their length in seconds.
type grants struct {
	client *clientv3.Client
	ctx    context.Context // ends with the source
	clock  *clock.Clock

	mu     sync.Mutex
	of     map[int64]*granted
	flying sync.WaitGroup
}

// granted is one etcd lease. It is neither kept alive nor revoked: it expires, with the keys still attached to it.
type granted struct {
	id    clientv3.LeaseID
	start clock.Instant // before the request was sent
	lasts time.Duration // at least, by etcd's clock
	ready chan struct{}
	err   error // valid after ready, like id
}

// ends is the earliest expiry by etcd's clock.
func (g *granted) ends() clock.Instant { return g.start.Add(g.lasts) }

// serves reports whether a lease of length ttl that begins now ends before the etcd lease does. The margin for clock
// drift includes the time since the etcd lease was granted.
func (g *granted) serves(ttl time.Duration) bool {
	age := g.start.Since()
	return age+age/50+ttl < g.lasts
}

// good returns a deadline for a lease that begins now: within its own TTL, and within the etcd lease's.
func (g *granted) good(ttl time.Duration) clock.Instant {
	return leases.Good(g.start.Now(), ttl).Earlier(leases.Good(g.start, g.lasts))
}

// get returns an etcd lease that outlives ttl from now.
func (g *grants) get(ctx context.Context, ttl time.Duration) (*granted, error) {
	seconds := int64((ttl + ahead + time.Second - 1) / time.Second)
	g.mu.Lock()
	one := g.of[seconds]
	if one == nil || !one.serves(ttl) {
		one = &granted{start: g.clock.Now(), lasts: time.Duration(seconds) * time.Second, ready: make(chan struct{})}
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

// grant requests an etcd lease for all callers that wait for it. The
// request is bounded; an etcd lease whose answer was lost expires.
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

// drop removes an etcd lease, so that the next caller requests another.
func (g *grants) drop(one *granted) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for seconds, other := range g.of {
		if other == one {
			delete(g.of, seconds)
		}
	}
}

// forget removes etcd leases that are too old to share.
func (g *grants) forget() {
	if g.of == nil {
		g.of = make(map[int64]*granted)
	}
	for seconds, other := range g.of {
		if other.start.Since() > 2*ahead {
			delete(g.of, seconds)
		}
	}
}
