package etcdlock

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencegate/fencegate/internal/leases"
)

// ahead is how much longer an etcd lease lives than the leases that use it. It can be shared for that time.
const ahead = time.Second

// maxJump is by how much the wall clock and the monotonic clock may disagree about the age of a shared etcd lease. In
// the seconds in which it is shared, adjusting the wall clock's rate moves it by about a millisecond. A paused virtual
// machine's monotonic clock stops; its wall clock is set when it resumes.
const maxJump = 10 * time.Millisecond

// grants are recently granted etcd leases, by their length in seconds.
type grants struct {
	client *clientv3.Client
	ctx    context.Context // ends with the source
	wall   func(now time.Time) time.Time

	mu     sync.Mutex
	of     map[int64]*granted
	flying sync.WaitGroup
}

// granted is one etcd lease. It is neither kept alive nor revoked: it expires, with the keys still attached to it.
type granted struct {
	id    clientv3.LeaseID
	start time.Time // before the request was sent
	wall  time.Time // start by the wall clock
	ends  time.Time // the earliest expiry by etcd's clock
	ready chan struct{}
	err   error // valid after ready, like id
}

// serves reports whether a lease of length ttl that begins now ends before the etcd lease does. The margin for clock
// drift includes the time since the etcd lease was granted. An etcd lease whose age is in doubt is not shared.
func (g *granted) serves(ttl time.Duration, now, wall time.Time) bool {
	age := now.Sub(g.start)
	if (wall.Sub(g.wall) - age).Abs() > maxJump {
		return false
	}
	return g.start.Add(age + age/50 + ttl).Before(g.ends)
}

// good returns a deadline for a lease that begins now: within its own TTL, and within the etcd lease's.
func (g *granted) good(ttl time.Duration) time.Time {
	own, theirs := leases.Good(time.Now(), ttl), leases.Good(g.start, g.ends.Sub(g.start))
	if theirs.Before(own) {
		return theirs
	}
	return own
}

// get returns an etcd lease that outlives ttl from now.
func (g *grants) get(ctx context.Context, ttl time.Duration) (*granted, error) {
	seconds := int64((ttl + ahead + time.Second - 1) / time.Second)
	g.mu.Lock()
	one, now := g.of[seconds], time.Now()
	wall := g.wall(now)
	if one == nil || !one.serves(ttl, now, wall) {
		one = &granted{start: now, wall: wall, ready: make(chan struct{})}
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

// wallClock is the wall clock's reading in a time that also holds the monotonic clock's.
func wallClock(now time.Time) time.Time { return now.Round(0) }

// forget removes etcd leases that are too old to share.
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
