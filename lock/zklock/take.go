package zklock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

const (
	takeTries = 6
	takePause = 50 * time.Millisecond
)

// hold is a lease of this process's session, or an attempt to take one. Its timer deletes its node at the deadline.
type hold struct {
	child    string
	owner    string
	deadline clock.Instant
	unused   bool // it gives no lease
	timer    *time.Timer
	over     atomic.Bool // the client sends no request any more that creates the node
}

// keep records a node of this session before it is requested, so that it is deleted whatever the answer is.
func (s *store) keep(owner, child string, deadline clock.Instant) *hold {
	h := &hold{child: child, owner: owner, deadline: deadline}
	s.mu.Lock()
	defer s.mu.Unlock()
	h.timer = time.AfterFunc(deadline.Left(), func() { s.expire(h) })
	s.holds[owner] = h
	return h
}

// drop forgets a hold whose node is gone, or belongs to another session.
func (s *store) drop(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.timer.Stop()
	if s.holds[h.owner] == h {
		delete(s.holds, h.owner)
	}
}

// expire deletes the node of an expired lease, and retries until ZooKeeper confirms that it is gone.
func (s *store) expire(h *hold) {
	s.mu.Lock()
	left := h.deadline.Left()
	if left > 0 && !h.unused { // it was extended
		h.timer.Reset(left)
		s.mu.Unlock()
		return
	}
	h.unused = true
	s.mu.Unlock()
	s.env.Life.InBackground(func(ctx context.Context) { s.remove(ctx, h) })
}

// giveUp deletes the node of an attempt that gives no lease.
func (s *store) giveUp(h *hold) {
	s.mu.Lock()
	h.unused = true
	s.mu.Unlock()
	s.env.Life.InBackground(func(ctx context.Context) { s.remove(ctx, h) })
}

// remove retries until the node is gone permanently: until it was deleted, or is absent after the call that creates it
// has ended. A session's requests are answered in order, even over another connection, so the node is not created later. If
// this user may not delete the node, it stays until it is released, or the session ends.
func (s *store) remove(ctx context.Context, h *hold) {
	for pause := takePause; ctx.Err() == nil; pause = min(2*pause, lookEvery) {
		over := h.over.Load() // before the node is looked for
		err := s.delete(ctx, h.child)
		if err == nil || over && errors.Is(err, zk.ErrNoNode) {
			s.drop(h)
			return
		}
		if errors.Is(err, zk.ErrNoAuth) {
			s.logger.WarnContext(ctx, "failed to delete the node of an ended lease, which blocks its resource until this process ends: correct the ACL of the resource's node, so that the digest's user may delete",
				"node", path.Dir(h.child), "error", err)
			return
		}
		leases.Pause(ctx, pause)
	}
}

func (s *store) delete(ctx context.Context, node string) error {
	_, err := call(ctx, s.session, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.Delete(node, -1) })
	return err
}

// Take takes what is free.
func (s *store) Take(ctx context.Context, r leasing.Request) (leases.Taken, error) {
	taken, at, err := s.take(ctx, r, nil)
	if held, ok := errors.AsType[*leasing.HeldError](err); ok && at != nil && at.lease != "" {
		held.RetryAfter = s.left(ctx, path.Join(s.node(r.Resource), at.lease))
	}
	return taken, err
}

// take looks, and takes what is free. A waiter takes it only after those before it.
func (s *store) take(ctx context.Context, r leasing.Request, p *place) (leases.Taken, *snapshot, error) {
	doing := fmt.Sprintf("acquire %q", r.Resource)
	look := s.lookUpToDate
	if p != nil { // a waiter looks again
		look = func(ctx context.Context, resource string) (*snapshot, error) { return s.lookAsWaiter(ctx, resource, p) }
	}
	for try := 1; ; try++ {
		at, err := look(ctx, r.Resource)
		if err == nil {
			first := p == nil || p.first(at)
			if at.lease != "" || !first {
				return leases.Taken{}, at, &leasing.HeldError{Resource: r.Resource, Holder: at.owner.Holder}
			}
			var taken leases.Taken
			if taken, err = s.create(ctx, r, at, p); err == nil {
				return taken, at, nil
			}
		}
		switch {
		case errors.Is(err, zk.ErrBadVersion) && try == takeTries: // others were faster
			return leases.Taken{}, at, &leasing.HeldError{Resource: r.Resource}
		// another was faster, the server lags behind, or the base was raised
		case errors.Is(err, zk.ErrBadVersion):
			_, err = s.readBase(ctx, true)
		case errors.Is(err, zk.ErrNoNode) && p != nil: // the place was lost with its session
			p.name = ""
			return leases.Taken{}, at, &leasing.HeldError{Resource: r.Resource}
		case mayPass(err):
			leases.Pause(ctx, takePause)
		}
		if ctx.Err() != nil || err != nil && !mayPass(err) || try == takeTries || errors.Is(err, errNoAnswer) {
			return leases.Taken{}, nil, failure(ctx, doing, err)
		}
	}
}

// lookUpToDate looks again after a sync if it finds a lease: the lease may be over.
func (s *store) lookUpToDate(ctx context.Context, resource string) (*snapshot, error) {
	at, err := s.look(ctx, resource)
	if err != nil || at.lease == "" {
		return at, err
	}
	if err := s.sync(ctx, resource); err != nil {
		return nil, err
	}
	return s.look(ctx, resource)
}

// lookAsWaiter syncs first if the place may be in the queue without the waiter's knowledge, so that it finds it.
func (s *store) lookAsWaiter(ctx context.Context, resource string, p *place) (*snapshot, error) {
	if p.doubt {
		if err := s.sync(ctx, resource); err != nil {
			return nil, err
		}
	}
	return s.look(ctx, resource)
}

// create creates the lease's node if the resource is unchanged since at.
func (s *store) create(ctx context.Context, r leasing.Request, at *snapshot, p *place) (leases.Taken, error) {
	b, err := s.readBase(ctx, false)
	if err != nil {
		return leases.Taken{}, err
	}
	node, own := s.node(r.Resource), leases.NewOwner(b.value, r.Holder)
	child, deadline := path.Join(node, own.Nonce+".0"), leases.Good(s.env.Clock.Now(), r.TTL)
	ops := []any{
		&zk.CheckVersionRequest{Path: s.baseNode(), Version: b.version},
		&zk.SetDataRequest{Path: node, Data: []byte(own.String()), Version: at.version},
		&zk.CreateRequest{Path: child, Data: until(deadline), Acl: s.session.acl, Flags: zk.FlagEphemeral},
	}
	if p != nil && p.name != "" {
		ops = append(ops, &zk.DeleteRequest{Path: path.Join(node, p.name), Version: -1})
	}
	h := s.keep(own.String(), child, deadline)
	answers, err := s.request(ctx, h, ops...)
	switch {
	case err == nil:
		if p != nil {
			p.name = ""
		}
		return leases.Taken{Resource: r.Resource, Owner: h.owner, Token: b.value + fence.Token(answers[1].Stat.Mzxid), Deadline: deadline}, nil
	case errors.Is(err, zk.ErrBadVersion), errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrNoAuth), isUnsent(err):
		s.drop(h) // nothing was created
	default:
		s.giveUp(h)
	}
	return leases.Taken{}, err
}

// request sends the transaction that creates a hold's node.
func (s *store) request(ctx context.Context, h *hold, ops ...any) ([]zk.MultiResponse, error) {
	return call(ctx, s.session, func(c *zk.Conn) ([]zk.MultiResponse, error) {
		defer h.over.Store(true)
		return c.Multi(ops...)
	})
}

// own returns this session's hold of an owner.
func (s *store) own(owner string) *hold {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holds[owner]
}

// Extend extends the deadline. A lease of another process is moved to this one's session.
func (s *store) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (clock.Instant, error) {
	doing := fmt.Sprintf("extend %q", ref.Resource)
	deadline := leases.Good(s.env.Clock.Now(), ttl)
	if h := s.own(ref.Owner); h != nil {
		if !s.alive(h) {
			return clock.Instant{}, fmt.Errorf("%s: %w", doing, leasing.ErrLost)
		}
		_, err := call(ctx, s.session, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(h.child, until(deadline), -1) })
		switch {
		case err == nil && s.move(h, deadline):
			return deadline, nil
		case err == nil:
			return clock.Instant{}, fmt.Errorf("%s: %w", doing, leasing.ErrLost)
		case !errors.Is(err, zk.ErrNoNode):
			return clock.Instant{}, failure(ctx, doing, err)
		}
		s.drop(h) // it has ended, or another process extended it
	}
	err := s.find(ctx, ref, func(at *snapshot) error { return s.adopt(ctx, ref, at, deadline) })
	switch {
	case err == nil:
		return deadline, nil
	case errors.Is(err, leasing.ErrLost):
		return clock.Instant{}, fmt.Errorf("%s: %w", doing, err)
	}
	return clock.Instant{}, failure(ctx, doing, err) // if it was carried out, the lease lives until the new deadline
}

// adopt moves a lease to this process's session.
func (s *store) adopt(ctx context.Context, ref leasing.Ref, at *snapshot, deadline clock.Instant) error {
	node := s.node(ref.Resource)
	child := path.Join(node, at.owner.Nonce+"."+strings.ToLower(rand.Text()))
	h := s.keep(ref.Owner, child, deadline)
	_, err := s.request(ctx, h,
		&zk.CheckVersionRequest{Path: node, Version: at.version}, &zk.DeleteRequest{Path: path.Join(node, at.lease), Version: -1},
		&zk.CreateRequest{Path: child, Data: until(deadline), Acl: s.session.acl, Flags: zk.FlagEphemeral},
	)
	switch {
	case errors.Is(err, zk.ErrBadVersion): // a newer lease has been given
		s.drop(h)
		return leasing.ErrLost
	case errors.Is(err, zk.ErrNoNode), isUnsent(err): // another process extended it, or nothing was done
		s.drop(h)
	}
	return err
}

func (s *store) alive(h *hold) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !h.unused && !h.deadline.Passed()
}

// move extends a hold's deadline, unless it is being deleted. It never shortens it: concurrent answers are handled in
// any order, and each caller relies on the deadline that it was given.
func (s *store) move(h *hold, deadline clock.Instant) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.unused {
		return false
	}
	if deadline.After(h.deadline) {
		h.deadline = deadline
		h.timer.Reset(deadline.Left())
	}
	return true
}

// Free deletes the lease's node, in whichever session it is.
func (s *store) Free(ctx context.Context, ref leasing.Ref) error {
	doing := fmt.Sprintf("release %q", ref.Resource)
	lost := false // an answer was lost: the node may be gone
	for try := 1; ; try++ {
		err := s.free(ctx, ref)
		switch {
		case err == nil, errors.Is(err, leasing.ErrLost) && lost:
			return nil
		case errors.Is(err, leasing.ErrLost):
			return fmt.Errorf("%s: %w", doing, err)
		case !mayPass(err) || try == takeTries || ctx.Err() != nil:
			return failure(ctx, doing, err)
		}
		lost = true
		leases.Pause(ctx, takePause)
	}
}

func (s *store) free(ctx context.Context, ref leasing.Ref) error {
	if h := s.own(ref.Owner); h != nil {
		err := s.delete(ctx, h.child)
		if err == nil || errors.Is(err, zk.ErrNoNode) {
			s.drop(h)
		}
		if !errors.Is(err, zk.ErrNoNode) {
			return err
		}
	}
	return s.find(ctx, ref, func(at *snapshot) error { return s.delete(ctx, path.Join(s.node(ref.Resource), at.lease)) })
}
