package leasingtest_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
)

// board keeps leases in memory for the sources of several simulated processes. It is a minimal implementation of the
// rules.
type board struct {
	broken string // the rule that it breaks, to test the suite
	clock  *clock.Clock

	mu     sync.Mutex
	tokens map[string]fence.Token
	leases map[string]entry
	queues map[string][]chan struct{}
	seal   fence.Seal // the only seal, if broken says so
}

type entry struct {
	owner, holder string
	token         fence.Token
	until         clock.Instant
}

func newBoard(broken string) *board {
	return &board{
		broken: broken, clock: clock.New(), seal: fence.NewSeal(), tokens: make(map[string]fence.Token), leases: make(map[string]entry),
		queues: make(map[string][]chan struct{}),
	}
}

// current is the holder of a resource; the caller has locked mu.
func (b *board) current(resource string) (entry, bool) {
	e, ok := b.leases[resource]
	if ok && e.until.Passed() && b.broken != "leases never end" {
		delete(b.leases, resource)
		return entry{}, false
	}
	return e, ok
}

// wake calls the first waiter; the caller has locked mu.
func (b *board) wake(resource string) {
	queue := b.queues[resource]
	if len(queue) == 0 || b.broken == "release wakes nobody" {
		return
	}
	first := queue[0]
	if b.broken == "last come, first served" {
		first = queue[len(queue)-1]
	}
	select {
	case first <- struct{}{}:
	default:
	}
}

type toy struct {
	b      *board
	armer  leasing.Armer
	closed context.Context // ends with Close
	end    context.CancelFunc
}

var _ leasing.Source = toy{}

func (b *board) open(armer leasing.Armer) leasing.Source {
	s := toy{b: b, armer: armer}
	s.closed, s.end = context.WithCancel(context.Background())
	return s
}

func (s toy) check(ctx context.Context, resource string) error {
	if s.closed.Err() != nil && s.b.broken != "open after close" {
		return leasing.ErrClosed
	}
	if err := ctx.Err(); err != nil && s.b.broken != "deaf to an ended context" {
		return err
	}
	return fence.ValidateResource(resource)
}

func checkTTL(ttl time.Duration) error {
	if ttl <= 0 || ttl > time.Hour {
		return &fence.InvalidError{Field: "ttl", Reason: "is out of bounds"}
	}
	return nil
}

func (s toy) try(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	if err := s.check(ctx, r.Resource); err != nil {
		return leasing.Lease{}, err
	}
	if err := checkTTL(r.TTL); err != nil && s.b.broken != "any input" {
		return leasing.Lease{}, err
	}
	if r.SealHash != nil && len(r.SealHash) != sha256.Size {
		return leasing.Lease{}, &fence.InvalidError{Field: "seal hash", Reason: "is no SHA-256"}
	}
	return s.take(ctx, r, 0)
}

func (s toy) take(ctx context.Context, r leasing.Request, floor fence.Token) (leasing.Lease, error) {
	lease, err := s.grant(r, floor)
	if err != nil || s.armer == nil || s.b.broken == "gives what is not armed" {
		return lease, err
	}
	hash := lease.Grant.Seal.Hash()
	if r.SealHash != nil && s.b.broken != "arms a seal of its own" {
		hash = r.SealHash
	}
	if r.SealHash != nil && s.b.broken != "gives a seal that is not armed" {
		lease.Grant.Seal = fence.Seal{}
	}
	err = s.armer.Arm(ctx, fence.Arming{Resource: r.Resource, Token: lease.Grant.Token, SealHash: hash, Holder: r.Holder})
	if err == nil {
		return lease, nil
	}
	if s.b.broken != "keeps what could not be armed" {
		_ = s.Release(ctx, lease.Ref())
	}
	var low *fence.NotRaisedError
	if errors.As(err, &low) && floor == 0 && s.b.broken != "stays below the fence" {
		return s.take(ctx, r, low.Recorded)
	}
	return leasing.Lease{}, err
}

func (s toy) grant(r leasing.Request, floor fence.Token) (leasing.Lease, error) {
	b := s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if e, ok := b.current(r.Resource); ok && b.broken != "two holders" {
		held := &leasing.HeldError{Resource: r.Resource, Holder: e.holder, RetryAfter: e.until.Left()}
		if b.broken == "held by nobody in particular" {
			held.Holder = ""
		}
		return leasing.Lease{}, held
	}
	token := max(b.tokens[r.Resource], floor) + 1
	if b.broken == "the same token again" {
		token = max(1, floor)
	}
	b.tokens[r.Resource] = token
	e := entry{owner: rand.Text(), holder: r.Holder, token: token, until: b.clock.Now().Add(r.TTL)}
	b.leases[r.Resource] = e
	lease := leasing.Lease{Grant: fence.Grant{Resource: r.Resource, Token: token, Seal: fence.NewSeal()}, Owner: e.owner, Deadline: e.until}
	switch b.broken {
	case "one seal for all":
		lease.Grant.Seal = b.seal
	case "a deadline beyond the TTL":
		lease.Deadline = e.until.Add(time.Second)
	case "ends before its deadline":
		e.until = e.until.Add(-r.TTL / 2)
		b.leases[r.Resource] = e
	}
	return lease, nil
}

func (s toy) wait(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	call := make(chan struct{}, 1)
	b := s.b
	b.mu.Lock()
	b.queues[r.Resource] = append(b.queues[r.Resource], call)
	first := len(b.queues[r.Resource]) == 1
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		at := slices.Index(b.queues[r.Resource], call)
		b.queues[r.Resource] = slices.Delete(b.queues[r.Resource], at, at+1)
		b.wake(r.Resource) // the first of the queue waits for the lease's end
	}()
	if first {
		call <- struct{}{}
	}
	var why error = &leasing.HeldError{Resource: r.Resource}
	for {
		expiry := time.NewTimer(10 * time.Minute)
		b.mu.Lock()
		if e, held := b.current(r.Resource); held && b.queues[r.Resource][0] == call && b.broken != "waits for releases only" {
			expiry.Reset(max(e.until.Left(), time.Millisecond))
		}
		b.mu.Unlock()
		ended := ctx.Done()
		switch b.broken {
		case "waits for ever":
			ended = nil
		case "gives up early":
			return leasing.Lease{}, fmt.Errorf("%w: %w", why, context.DeadlineExceeded)
		}
		select {
		case <-call:
		case <-expiry.C:
		case <-s.closed.Done():
			expiry.Stop()
			return leasing.Lease{}, leasing.ErrClosed
		case <-ended:
			expiry.Stop()
			if b.broken == "does not say why it waited" {
				return leasing.Lease{}, ctx.Err()
			}
			return leasing.Lease{}, fmt.Errorf("%w: %w", why, ctx.Err())
		}
		expiry.Stop()
		lease, err := s.try(ctx, r)
		if !errors.Is(err, leasing.ErrHeld) {
			return lease, err
		}
		why = err
	}
}

func (s toy) Acquire(ctx context.Context, wait leasing.Wait, all ...leasing.Request) ([]leasing.Lease, error) {
	if wait && !(len(all) > 1 && s.b.broken == "tries several once") {
		return s.each(ctx, all, s.wait)
	}
	return s.each(ctx, all, s.try)
}

func (s toy) each(
	ctx context.Context, all []leasing.Request, acquire func(context.Context, leasing.Request) (leasing.Lease, error),
) (leases []leasing.Lease, err error) {
	if err := leasing.Distinct(all, func(r leasing.Request) string { return r.Resource }); err != nil {
		return nil, err
	}
	order := slices.SortedFunc(slices.Values(all), func(a, b leasing.Request) int { return strings.Compare(a.Resource, b.Resource) })
	taken := make(map[string]leasing.Lease)
	for _, r := range order {
		lease, err := acquire(ctx, r)
		if err != nil {
			for _, lease := range taken {
				if s.b.broken != "keeps what it got" {
					_ = s.Release(ctx, lease.Ref())
				}
			}
			return nil, err
		}
		taken[r.Resource] = lease
	}
	if s.b.broken == "in an order of its own" {
		all = order
	}
	for _, r := range all {
		leases = append(leases, taken[r.Resource])
	}
	return leases, nil
}

func (s toy) valid(ctx context.Context, ref leasing.Ref) error {
	if err := s.check(context.WithoutCancel(ctx), ref.Resource); err != nil {
		return err
	}
	if ref.Owner == "" {
		return &fence.InvalidError{Field: "owner", Reason: "is missing"}
	}
	return nil
}

func (s toy) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (clock.Instant, error) {
	if err := cmp.Or(s.valid(ctx, ref), checkTTL(ttl)); err != nil {
		return clock.Instant{}, err
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	e, ok := s.b.current(ref.Resource)
	switch {
	case s.b.broken == "extends nothing":
		return s.b.clock.Now().Add(ttl), nil
	case !ok && s.b.broken == "revives leases":
		e = entry{owner: ref.Owner, token: ref.Token}
	case !ok || e.owner != ref.Owner:
		return clock.Instant{}, leasing.ErrLost
	}
	e.until = s.b.clock.Now().Add(ttl)
	s.b.leases[ref.Resource] = e
	return e.until, nil
}

func (s toy) Release(ctx context.Context, ref leasing.Ref) error {
	if err := s.valid(ctx, ref); err != nil {
		return err
	}
	if s.b.broken == "a release that an ended context stops" && ctx.Err() != nil {
		return ctx.Err()
	}
	if s.b.broken == "frees before it ends" {
		defer func() { _ = s.endGrant(ctx, ref) }()
	} else if err := s.endGrant(ctx, ref); err != nil && s.b.broken == "keeps what could not be ended" {
		return nil
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	e, ok := s.b.current(ref.Resource)
	if !ok || e.owner != ref.Owner && s.b.broken != "anybody's release" {
		return leasing.ErrLost
	}
	delete(s.b.leases, ref.Resource)
	s.b.wake(ref.Resource)
	return nil
}

func (s toy) endGrant(ctx context.Context, ref leasing.Ref) error {
	if s.armer == nil || s.b.broken == "ends no grant" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 100*time.Millisecond)
	defer cancel()
	return s.armer.End(ctx, fence.Ending{Resource: ref.Resource, Token: ref.Token})
}

func (s toy) Inspect(ctx context.Context, resources ...string) ([]leasing.Inspection, error) {
	all := make([]leasing.Inspection, len(resources))
	for i, resource := range resources {
		var err error
		if all[i], err = s.inspect(ctx, resource); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (s toy) inspect(ctx context.Context, resource string) (leasing.Inspection, error) {
	ins := leasing.Inspection{Resource: resource}
	if err := s.check(ctx, resource); err != nil {
		return ins, err
	}
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	e, ok := s.b.current(resource)
	if ok {
		ins.Locked, ins.Holder, ins.Owner, ins.TTL = true, e.holder, e.owner, e.until.Left()
	}
	ins.Token, ins.Waiters = s.b.tokens[resource], len(s.b.queues[resource])
	if s.b.broken == "sees no token" {
		ins.Token = math.MinInt
	}
	return ins, nil
}

func (s toy) Ready(context.Context) (string, error) { return "", nil }

func (s toy) Close() error {
	s.end()
	if s.b.broken == "leases end with their source" {
		s.b.mu.Lock()
		defer s.b.mu.Unlock()
		clear(s.b.leases)
	}
	return nil
}
