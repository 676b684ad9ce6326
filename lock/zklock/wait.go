package zklock

import (
	"context"
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

const (
	// waitPrefix begins the names of the waiters: wait.GUID-SEQUENCE.
	waitPrefix = "wait."
	// lookEvery is how often a waiter polls, as a watch may break.
	lookEvery = 3 * time.Second
	// awayPause is the pause between two polls while ZooKeeper is unavailable.
	awayPause = 200 * time.Millisecond
)

// place is a process's place in a resource's queue. A creation that got no answer is repeated, so the place may have
// several nodes: it counts from the first.
type place struct {
	guid     string       // finds its nodes again if their creation was not confirmed
	name     string       // of its first node; "": not in the queue, as far as known
	doubt    bool         // the creation of a node was not confirmed
	standing atomic.Int32 // calls that create a node and have not ended

	watched string
	fired   <-chan zk.Event
}

// sequence is the number that ZooKeeper appended; it rises.
func sequence(name string) string { return name[strings.LastIndexByte(name, '-')+1:] }

// nodes returns the names of the place's nodes.
func (p *place) nodes(at *snapshot) (names []string) {
	for _, name := range at.waiting {
		if strings.HasPrefix(name, waitPrefix+p.guid+"-") {
			names = append(names, name)
		}
	}
	return names
}

// find looks for the place among the waiters.
func (p *place) find(at *snapshot) {
	p.name = ""
	for _, name := range p.nodes(at) {
		if p.name == "" || sequence(name) < sequence(p.name) {
			p.name = name
		}
	}
}

// ahead returns the waiter just before the place, or "".
func (p *place) ahead(at *snapshot) (before string) {
	for _, name := range at.waiting {
		if (p.name == "" || sequence(name) < sequence(p.name)) && (before == "" || sequence(name) > sequence(before)) {
			before = name
		}
	}
	return before
}

func (p *place) first(at *snapshot) bool {
	p.find(at)
	return p.ahead(at) == ""
}

// Wait takes the lease when it is the place's turn.
func (s *store) Wait(ctx context.Context, r leasing.Request, w *leases.Waiter) (leases.Taken, error) {
	p := &place{guid: strings.ToLower(rand.Text())}
	stood := false
	defer func() {
		if stood {
			s.leave(r.Resource, p)
		}
	}()
	for {
		taken, at, err := s.take(ctx, r, p)
		if err == nil {
			return taken, nil
		}
		held := errors.Is(err, leasing.ErrHeld)
		if !held && !mayPass(err) || ctx.Err() != nil {
			return leases.Taken{}, err
		}
		w.Waits(err)
		if held && p.name == "" {
			stood = true
			err = s.stand(ctx, r.Resource, p)
			if err != nil && !mayPass(err) {
				return leases.Taken{}, failure(ctx, "wait for "+r.Resource, err)
			}
			if err == nil {
				continue // at is older than the place
			}
		}
		if !held || err != nil && !errors.Is(err, leasing.ErrHeld) {
			leases.Pause(ctx, awayPause)
			continue
		}
		s.watch(ctx, r.Resource, p, at)
	}
}

func (s *store) stand(ctx context.Context, resource string, p *place) error {
	p.standing.Add(1)
	name, err := call(ctx, s.session, func(c *zk.Conn) (string, error) {
		defer p.standing.Add(-1)
		return c.Create(path.Join(s.node(resource), waitPrefix+p.guid+"-"), nil, zk.FlagEphemeral|zk.FlagSequence, s.session.acl)
	})
	switch {
	case err == nil:
		p.name = path.Base(name)
	case isUnsent(err):
		p.standing.Add(-1)
	default:
		p.doubt = true
	}
	return err
}

// watch returns when the waiter just before the place has gone, or, for the first, the lease; or at the next poll.
func (s *store) watch(ctx context.Context, resource string, p *place, at *snapshot) {
	before := p.ahead(at)
	if before == "" {
		before = at.lease
	}
	if before == "" {
		return
	}
	if before != p.watched || p.fired == nil {
		// A watch by Exists would stay if the node is gone.
		fired, err := call(ctx, s.session, func(c *zk.Conn) (<-chan zk.Event, error) {
			_, _, fired, err := c.GetW(path.Join(s.node(resource), before))
			return fired, err
		})
		if errors.Is(err, zk.ErrNoNode) {
			return
		}
		if err != nil {
			leases.Pause(ctx, awayPause)
			return
		}
		p.watched, p.fired = before, fired
	}
	timer := time.NewTimer(lookEvery/2 + mathrand.N(lookEvery/2))
	defer timer.Stop()
	select {
	case <-p.fired:
		p.fired = nil
	case <-timer.C:
	case <-ctx.Done():
	}
}

// leave removes the place, even if it is not known whether it exists.
func (s *store) leave(resource string, p *place) {
	s.env.Life.InBackground(func(ctx context.Context) {
		for pause := awayPause; ctx.Err() == nil; pause = min(2*pause, lookEvery) {
			if gone, err := s.clear(ctx, resource, p); gone && err == nil {
				return
			}
			leases.Pause(ctx, pause)
		}
	})
}

// clear deletes the place's nodes, and reports whether none will appear again: the calls that create them had ended
// before it looked. A session's requests are carried out in order, even over another connection, so the look after a
// sync shows what those calls have created.
func (s *store) clear(ctx context.Context, resource string, p *place) (gone bool, err error) {
	over := p.standing.Load() == 0
	if p.doubt {
		if err := s.sync(ctx, resource); err != nil {
			return false, err
		}
	}
	at, err := s.look(ctx, resource)
	if err != nil {
		return false, err
	}
	for _, name := range p.nodes(at) {
		if deleteErr := s.delete(ctx, path.Join(s.node(resource), name)); !errors.Is(deleteErr, zk.ErrNoNode) {
			err = errors.Join(err, deleteErr)
		}
	}
	return over, err
}
