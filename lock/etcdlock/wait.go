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
	// lookEvery is how often who waits looks by itself, as a watch may break.
	lookEvery = 3 * time.Second
	// placeTTL is how long a place in the line is kept for a process that does not look.
	placeTTL = 10 * time.Second
	// leaveTimeout bounds giving a place up.
	leaveTimeout = 2 * time.Second
	// awayPause is between two looks while etcd is away.
	awayPause = 200 * time.Millisecond
)

// place is where a process stands in a resource's line.
type place struct {
	key     string
	lease   *granted
	created int64 // its create revision; 0: it does not stand yet
	gone    bool  // it was given up by the transaction that took the lease
}

// Wait takes the lease when it is the place's turn.
func (s *store) Wait(ctx context.Context, r leasing.Request, why func(error)) (leases.Taken, error) {
	taken, _, err := s.take(ctx, &attempt{r: r, behind: true}) // with others; nobody waits, as a rule
	var p *place
	for {
		if err == nil {
			if p != nil {
				p.gone = p.created > 0
			}
			return taken, nil
		}
		held := errors.Is(err, leasing.ErrHeld)
		if !held && !mayPass(err) || ctx.Err() != nil {
			return leases.Taken{}, err
		}
		why(err)
		if p == nil {
			p = &place{key: s.line(r.Resource) + strings.ToLower(rand.Text())}
			defer s.leave(p)
		}
		if !held {
			leases.Pause(ctx, awayPause)
		}
		var last *seen
		if taken, last, err = s.take(ctx, &attempt{r: r, behind: true, place: p}); err != nil && last != nil && last.line != nil {
			why(err)
			if ahead := p.ahead(s.lock(r.Resource), last); ahead != "" {
				s.watch(ctx, ahead, last.revision)
			}
		}
	}
}

// ahead notes where the place stands, and names the key whose end it waits for: that of who is before it in the line, or,
// for the first, of the lease. "": it need not wait.
func (p *place) ahead(lock string, s *seen) string {
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

// watch returns when a key has been deleted after a revision, or it is time to look. A watch that breaks, as where the
// revision was compacted, or a restored cluster has not reached it, costs time only.
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

// leave gives the place up.
func (s *store) leave(p *place) {
	if p.gone {
		return
	}
	s.inBackground(func(context.Context) {
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		_, _ = s.do(ctx, clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpDelete(p.key)}, nil)) // else its time ends it
	})
}
