package torture

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/leases"
)

func resource(i int) string { return fmt.Sprintf("r%d", i) }

// passing reports whether the faults explain an error.
func passing(err error) bool { return leasing.Retryable(err) || errors.Is(err, leasing.ErrLost) }

// use acquires one lease after the other.
func (m *torment) use(ctx context.Context, t testing.TB, s leasing.Source) {
	for ctx.Err() == nil {
		wait := leasing.Wait(rand.N(2) == 0)
		ttl := m.TTL/2 + rand.N(m.TTL)
		h := hold{resource: resource(rand.N(resources)), asked: time.Now()}
		lease, err := leasing.One(s.Acquire(ctx, wait, leasing.Request{Resource: h.resource, TTL: ttl}))
		h.from, h.to, h.token = time.Now(), lease.Deadline.Time(), lease.Grant.Token
		switch {
		case err == nil && ctx.Err() != nil:
			m.note(h)
			return
		case err == nil:
			err = m.have(ctx, s, lease, &h, ttl)
			m.note(h)
		case ctx.Err() != nil:
			return
		}
		if err != nil && !passing(err) && ctx.Err() == nil {
			t.Errorf("%s: %v", h.resource, err)
			return
		}
		if err != nil {
			leases.Pause(ctx, rand.N(20*time.Millisecond))
		}
	}
}

// have holds a lease for a while, and ends it in one of several ways.
func (m *torment) have(ctx context.Context, s leasing.Source, lease leasing.Lease, h *hold, ttl time.Duration) error {
	for range rand.N(4) {
		pause := rand.N(ttl / 4)
		if rand.N(6) == 0 {
			pause = rand.N(2 * ttl) // it stops renewing, and returns when the lease may have expired
		}
		leases.Pause(ctx, pause)
		if alive, err := m.extend(ctx, s, lease, h, m.TTL/2+rand.N(m.TTL)); !alive {
			return err
		}
	}
	switch rand.N(8) {
	case 0: // it vanishes
		return nil
	case 1: // it releases late
		leases.Pause(ctx, time.Until(h.to)+rand.N(ttl/10))
	}
	h.to = earlier(h.to, time.Now())
	err := s.Release(ctx, lease.Ref())
	if err == nil && rand.N(4) == 0 && m.keeps(ctx, s, lease.Ref()) {
		m.count(&m.kept)
	}
	return err
}

// extend renews a lease. Until the answer, the holder relies on the previous deadline.
func (m *torment) extend(ctx context.Context, s leasing.Source, lease leasing.Lease, h *hold, ttl time.Duration) (alive bool, err error) {
	asked := time.Now()
	deadline, err := s.Extend(ctx, lease.Ref(), ttl)
	switch now := time.Now(); {
	case err == nil:
		h.to = deadline.Time()
	case errors.Is(err, leasing.ErrLost):
		if now.Before(earlier(h.to, asked.Add(ttl/2))) {
			m.count(&m.early)
		}
		return false, err
	default:
		h.to = earlier(h.to, asked.Add(ttl))
	}
	return err == nil || errors.Is(err, leasing.ErrUnavailable), err
}

// keeps reports whether a released lease is still shown after the time that a server may lag behind.
func (m *torment) keeps(ctx context.Context, s leasing.Source, ref leasing.Ref) bool {
	for until := time.Now().Add(m.TTL / 4); ; leases.Pause(ctx, 10*time.Millisecond) {
		seen, err := leasing.One(s.Inspect(ctx, ref.Resource))
		switch {
		case err != nil || ctx.Err() != nil || !seen.Locked || seen.Owner != ref.Owner:
			return false
		case time.Now().After(until):
			return true
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
