package leases

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ttl = 30 * time.Second

// service is a coordination service in memory: one key for each resource, and a queue of processes for each. A test
// may have its calls fail.
type service struct {
	begun time.Time
	clock *clock.Clock // of the processes

	mu     sync.Mutex
	last   fence.Token
	keys   map[string]key
	queues map[string][]*place
	away   time.Time                  // its calls fail until then
	onTake func(resource string)      // after each Take, if set
	extend func(leasing.Ref) error    // before each extension, if set
	calls  map[string][]time.Duration // when each method was called, counted from begun
	ended  int                        // calls of Free whose context had ended
}

type key struct {
	owner, holder string
	token         fence.Token
	until         time.Time
}

// place is a process's place in a queue. It is called when it may be the first, or the key has gone.
type place struct{ call chan struct{} }

func newService() *service {
	return &service{
		begun: time.Now(), clock: clock.New(), keys: make(map[string]key), queues: make(map[string][]*place), calls: make(map[string][]time.Duration),
	}
}

// process is the Source of one process; it is closed with the test.
func (s *service) process(t testing.TB, armer leasing.Armer) *Source {
	t.Helper()
	source := s.open(t, armer)
	t.Cleanup(func() {
		if err := source.Close(); err != nil {
			t.Error(err)
		}
	})
	return source
}

func (s *service) open(t testing.TB, armer leasing.Armer) *Source {
	t.Helper()
	source, _, err := New(Config{Store: store{s}, Armer: armer, MinTTL: time.Second, MaxTTL: time.Hour, Clock: s.clock})
	if err != nil {
		t.Fatal(err)
	}
	return source
}

// called returns when a method was called, and forgets it.
func (s *service) called(method string) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer delete(s.calls, method)
	return s.calls[method]
}

// leave has the service fail for a time.
func (s *service) leave(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away = time.Now().Add(d)
}

// answer notes a call, and fails it while the service is away; the caller has locked mu.
func (s *service) answer(ctx context.Context, method string) error {
	s.calls[method] = append(s.calls[method], time.Since(s.begun))
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case time.Now().Before(s.away):
		return leasing.ErrUnavailable
	}
	return nil
}

// current is a resource's key; the caller has locked mu.
func (s *service) current(resource string) (key, bool) {
	k, ok := s.keys[resource]
	return k, ok && time.Now().Before(k.until)
}

// lives reports whether somebody has the resource.
func (s *service) lives(resource string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.current(resource)
	return ok
}

// wake calls the first of a queue; the caller has locked mu.
func (s *service) wake(resource string) {
	if queue := s.queues[resource]; len(queue) > 0 {
		select {
		case queue[0].call <- struct{}{}:
		default:
		}
	}
}

// store is one process's connection to the service.
type store struct{ *service }

var _ Store = store{}

func (s store) Take(ctx context.Context, r leasing.Request) (Taken, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.answer(ctx, "take"); err != nil {
		return Taken{}, err
	}
	if s.onTake != nil {
		defer s.onTake(r.Resource)
	}
	return s.take(r)
}

// take takes a free key; the caller has locked mu.
func (s store) take(r leasing.Request) (Taken, error) {
	if k, held := s.current(r.Resource); held {
		return Taken{}, &leasing.HeldError{Resource: r.Resource, Holder: k.holder, RetryAfter: time.Until(k.until)}
	}
	s.last++
	k := key{owner: rand.Text(), holder: r.Holder, token: s.last, until: time.Now().Add(r.TTL)}
	s.keys[r.Resource] = k
	return Taken{Resource: r.Resource, Owner: k.owner, Token: k.token, Deadline: Good(s.clock.Now(), r.TTL)}, nil
}

func (s store) Wait(ctx context.Context, r leasing.Request, w *Waiter) (Taken, error) {
	p := &place{call: make(chan struct{}, 1)}
	s.mu.Lock()
	s.queues[r.Resource] = append(s.queues[r.Resource], p)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.queues[r.Resource] = slices.DeleteFunc(s.queues[r.Resource], func(other *place) bool { return other == p })
		s.wake(r.Resource)
	}()
	for {
		s.mu.Lock()
		first := s.queues[r.Resource][0] == p
		taken, err := Taken{}, error(&leasing.HeldError{Resource: r.Resource})
		if first {
			if err = s.answer(ctx, "wait"); err == nil {
				taken, err = s.take(r)
			}
		}
		expiry := time.NewTimer(time.Hour)
		if k, held := s.current(r.Resource); held && first {
			expiry.Reset(time.Until(k.until))
		} else if first {
			expiry.Reset(time.Second) // it is away
		}
		s.mu.Unlock()
		if err == nil || ctx.Err() != nil {
			expiry.Stop()
			return taken, err
		}
		w.Waits(err)
		select {
		case <-p.call:
		case <-expiry.C:
		case <-ctx.Done():
		}
		expiry.Stop()
	}
}

func (s store) Extend(ctx context.Context, ref leasing.Ref, ttl time.Duration) (clock.Instant, error) {
	asked := s.clock.Now()
	s.mu.Lock()
	err := s.answer(ctx, "extend")
	s.mu.Unlock()
	if err == nil && s.extend != nil {
		err = s.extend(ref)
	}
	if err != nil {
		return clock.Instant{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	k, held := s.current(ref.Resource)
	if !held || k.owner != ref.Owner {
		return clock.Instant{}, leasing.ErrLost
	}
	k.until = time.Now().Add(ttl)
	s.keys[ref.Resource] = k
	return Good(asked, ttl), nil
}

func (s store) Free(ctx context.Context, ref leasing.Ref) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		s.ended++
	}
	if err := s.answer(ctx, "free"); err != nil {
		return err
	}
	k, held := s.current(ref.Resource)
	if !held || k.owner != ref.Owner {
		return leasing.ErrLost
	}
	delete(s.keys, ref.Resource)
	s.wake(ref.Resource)
	return nil
}

func (s store) Raise(ctx context.Context, above fence.Token) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.answer(ctx, "raise"); err != nil {
		return err
	}
	s.last = max(s.last, above)
	return nil
}

func (s store) Inspect(ctx context.Context, resources []string) (all []leasing.Inspection, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, resource := range resources {
		ins := leasing.Inspection{Resource: resource, Token: s.last, Waiters: len(s.queues[resource])}
		if k, held := s.current(resource); held {
			ins.Locked, ins.Holder, ins.Owner, ins.TTL = true, k.holder, k.owner, time.Until(k.until)
		}
		all = append(all, ins)
	}
	return all, s.answer(ctx, "inspect")
}

// anyFence arms everything. Its methods are replaced one by one.
type anyFence struct{}

func (anyFence) Arm(context.Context, ...fence.Arming) error { return nil }
func (anyFence) End(context.Context, fence.Ending) error    { return nil }
func (anyFence) Floor(string) fence.Token                   { return 0 }
func (anyFence) Raised(context.Context) (bool, error)       { return true, nil }

// good is how long a lease of this TTL is good.
func good(ttl time.Duration) time.Duration { return ttl - ttl/100 - 2*time.Millisecond }

func (s store) Ready(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answer(ctx, "ready")
}

func (s store) Close() error { return nil }

// request asks for a resource.
func request(resource string) leasing.Request { return leasing.Request{Resource: resource, TTL: ttl} }

func take(t testing.TB, s *Source, resource string) leasing.Lease {
	t.Helper()
	lease, err := leasing.One(s.Acquire(t.Context(), leasing.AtOnce, request(resource)))
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func release(t testing.TB, s *Source, lease leasing.Lease) {
	t.Helper()
	if err := s.Release(t.Context(), lease.Ref()); err != nil {
		t.Fatal(fmt.Errorf("release %v: %w", lease.Grant, err))
	}
}
