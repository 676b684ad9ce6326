// Package torture torments a source of leases: processes race for few resources, renew, vanish and come late, while
// faults happen, and what they were given is judged.
//
//	torture.Run(t, torture.Config{Open: open, Fault: func(ctx context.Context) error { … freeze a server, thaw it … }})
package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

// Config says what to torment.
type Config struct {
	Open      func() leasing.Source           // one process's; Run closes it
	Fault     func(ctx context.Context) error // is called again and again; nil: none
	Processes int
	For       time.Duration
	TTL       time.Duration
}

// hold is one lease as its holder saw it.
type hold struct {
	token       fence.Token
	asked, from time.Time // before the call, and after it
	to          time.Time // before its release, or its deadline
}

type judge struct {
	mu    sync.Mutex
	holds map[string][]hold
}

// Run torments, and fails t where a token came twice or fell, or two leases of one resource overlapped.
func Run(t testing.TB, cfg Config) {
	t.Helper()
	const callers = 3
	ctx, cancel := context.WithTimeout(t.Context(), cfg.For)
	defer cancel()
	j := &judge{holds: make(map[string][]hold)}
	var done sync.WaitGroup
	for range cfg.Processes {
		s := cfg.Open()
		t.Cleanup(func() { _ = s.Close() })
		for range callers {
			done.Go(func() {
				for ctx.Err() == nil {
					if err := j.cycle(ctx, s, cfg.TTL); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	faults := 0
	for cfg.Fault != nil && ctx.Err() == nil {
		if err := cfg.Fault(ctx); err != nil {
			t.Error(err)
			break
		}
		faults++
	}
	done.Wait()
	given, wrong := j.verdict()
	for _, line := range wrong {
		t.Error(line)
	}
	t.Logf("%d leases and %d faults in %v: %d wrong", given, faults, cfg.For, len(wrong))
	if given < cfg.Processes {
		t.Errorf("only %d leases were given, so this shows nothing", given)
	}
}

// cycle has one lease, which ends in one of several ways.
func (j *judge) cycle(ctx context.Context, s leasing.Source, ttl time.Duration) error {
	r := leasing.Request{Resource: []string{"a", "b"}[rand.N(2)], TTL: ttl/2 + rand.N(ttl)}
	acquire := s.Acquire
	if rand.N(3) == 0 {
		acquire = s.TryAcquire
	}
	asked := time.Now()
	lease, err := acquire(ctx, r)
	from := time.Now()
	switch {
	case ctx.Err() != nil:
		if err == nil {
			j.note(r.Resource, hold{lease.Grant.Token, asked, from, lease.Deadline})
		}
		return nil
	case leasing.Retryable(err), errors.Is(err, leasing.ErrLost):
		leases.Pause(ctx, rand.N(20*time.Millisecond))
		return nil
	case err != nil:
		return err
	}
	deadline := lease.Deadline
	leases.Pause(ctx, rand.N(ttl/20))
	if rand.N(4) == 0 {
		asked := time.Now()
		valid, err := s.Extend(ctx, lease.Ref(), ttl)
		switch {
		case err == nil && asked.Before(deadline):
			deadline = time.Now().Add(valid)
		case errors.Is(err, leasing.ErrUnavailable):
			deadline = earlier(deadline, asked.Add(ttl))
		}
	}
	switch rand.N(5) {
	case 0: // it vanishes
	case 1: // it comes late
		leases.Pause(ctx, time.Until(deadline)+rand.N(ttl/10))
	default:
		deadline = earlier(deadline, time.Now())
		if err := s.Release(ctx, lease.Ref()); err != nil && !leasing.Retryable(err) && !errors.Is(err, leasing.ErrLost) && ctx.Err() == nil {
			return err
		}
	}
	j.note(r.Resource, hold{lease.Grant.Token, asked, from, deadline})
	return nil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (j *judge) note(resource string, h hold) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.holds[resource] = append(j.holds[resource], h)
}

// verdict compares every lease with every other of its resource.
func (j *judge) verdict() (given int, wrong []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for resource, all := range j.holds {
		given += len(all)
		for i, h := range all {
			for k, o := range all {
				switch {
				case i < k && h.token == o.token:
					wrong = append(wrong, fmt.Sprintf("%s: token %d came twice", resource, h.token))
				case h.from.Before(o.asked) && o.token < h.token:
					wrong = append(wrong, fmt.Sprintf("%s: token %d came after %d", resource, o.token, h.token))
				case o.token > h.token && o.from.Before(h.to):
					wrong = append(wrong, fmt.Sprintf("%s: token %d was had %v before %d was over", resource, o.token, h.to.Sub(o.from), h.token))
				}
			}
		}
	}
	return given, wrong
}
