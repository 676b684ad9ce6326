package etcdlock

import (
	"context"
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

const (
	// lookEvery is how often a waiter polls, as a watch may break.
	lookEvery = 3 * time.Second
	// placeTTL is how long a place in the queue is kept for a process that does not poll.
	placeTTL = 10 * time.Second
	// leaveTimeout bounds leaving the queue.
	leaveTimeout = 2 * time.Second
	// awayPause is the pause between two polls while etcd is unavailable.
	awayPause = 200 * time.Millisecond
)

// place is a process's place in a resource's queue.
type place struct {
	key     string
	lease   *granted
	created int64 // its create revision; 0: it has not joined
	gone    bool  // it was removed by the transaction that took the lease
}

// Wait takes the lease when it is the place's turn.
func (s *store) Wait(ctx context.Context, r leasing.Request, w *leases.Waiter) (leases.Taken, error) {
	taken, last, err := s.take(ctx, &attempt{r: r, behind: true}) // grouped with others, as usually nobody waits
	var p *place
	for {
		if err == nil {
			if p != nil {
				// If the lease is of an earlier attempt, the last one has put the place again, and read the queue.
				p.gone = p.created > 0 && last.line == nil
			}
			return taken, nil
		}
		held := errors.Is(err, leasing.ErrHeld)
		if !held && !mayPass(err) || ctx.Err() != nil {
			return leases.Taken{}, err
		}
		w.Waits(err)
		if p == nil {
			p = &place{key: s.line(r.Resource) + strings.ToLower(rand.Text())}
			defer s.leave(p)
		}
		if !held {
			leases.Pause(ctx, awayPause)
		}
		if taken, last, err = s.take(ctx, &attempt{r: r, behind: true, place: p}); err != nil && last != nil && last.line != nil {
			w.Waits(err)
			if ahead := p.ahead(s.lock(r.Resource), last); ahead != "" {
				s.watch(ctx, ahead, last.revision)
			}
		}
	}
}

// ahead notes the place's revision, and returns the key whose deletion it waits for: that of the waiter before it, or,
// for the first, of the lease. It returns "" if there is nothing to wait for.
func (p *place) ahead(lock string, s *snapshot) string {
	p.created = 0
	for _, kv := range s.line.Kvs {
		if string(kv.Key) == p.key {
			p.created = kv.CreateRevision
		}
	}
	key, latest := "", int64(0)
	for _, kv := range s.line.Kvs {
		if kv.CreateRevision < p.created && kv.CreateRevision > latest {
			key, latest = string(kv.Key), kv.CreateRevision
		}
	}
	if key == "" && len(s.lock.Kvs) > 0 {
		return lock
	}
	return key
}

// watch returns when the key has been deleted after a revision, or at the next poll. A watch breaks if the revision was
// compacted, or if a restored cluster has not reached it; that costs only time.
func (s *store) watch(ctx context.Context, key string, after int64) {
	ctx, cancel := context.WithTimeout(ctx, lookEvery/2+mathrand.N(lookEvery/2))
	defer cancel()
	for answer := range s.client.Watch(clientv3.WithRequireLeader(ctx), key, clientv3.WithRev(after+1), clientv3.WithFilterPut()) {
		if answer.Err() != nil {
			leases.Pause(ctx, awayPause)
			return
		}
		if len(answer.Events) > 0 {
			return
		}
	}
}

// leave leaves the queue.
func (s *store) leave(p *place) {
	if p.gone {
		return
	}
	s.env.Life.InBackground(func(context.Context) {
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		_, _ = s.do(ctx, clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpDelete(p.key)}, nil)) // otherwise it expires
	})
}
