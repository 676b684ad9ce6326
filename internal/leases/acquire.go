package leases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/internal/renewal"
)

// armTries bounds how often leases are taken again because a fence is higher.
const armTries = 3

// Acquire takes the leases one after the other, in the byte order of the names, so that two callers with common resources
// never deadlock, and arms them. Callers of this Source are served in the order in which they asked. The first of them
// queues in the service.
func (s *Source) Acquire(ctx context.Context, wait leasing.Wait, all ...leasing.Request) ([]leasing.Lease, error) {
	begun := time.Now()
	leases, err := s.acquire(ctx, wait, all)
	if err != nil {
		s.cfg.Metrics.Failed("acquire", causeOf(err))
		return nil, err
	}
	for range leases {
		s.cfg.Metrics.Acquired(time.Since(begun), 1)
	}
	return leases, nil
}

func (s *Source) acquire(ctx context.Context, wait leasing.Wait, all []leasing.Request) ([]leasing.Lease, error) {
	all, seals, err := s.valid(all)
	if err != nil {
		return nil, err
	}
	ctx, cancel, err := s.life.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	take := s.cfg.Store.Take
	if wait {
		take = s.wait
	}
	taken, err := s.takeAndArm(ctx, all, take)
	if err != nil {
		return nil, err
	}
	leases := make([]leasing.Lease, len(taken))
	for i, t := range taken {
		leases[i] = leasing.Lease{Grant: fence.Grant{Resource: t.Resource, Token: t.Token, Seal: seals[i]}, Owner: t.Owner, Deadline: t.Deadline}
	}
	return leases, nil
}

// valid returns the requests with a holder and a seal hash, and the seals of those that came without.
func (s *Source) valid(all []leasing.Request) (valid []leasing.Request, seals []fence.Seal, err error) {
	valid, seals = slices.Clone(all), make([]fence.Seal, len(all))
	for i := range valid {
		r := &valid[i]
		r.Holder = cmp.Or(r.Holder, s.cfg.Holder)
		if err := r.Validate(s.cfg.MinTTL, s.cfg.MaxTTL); err != nil {
			return nil, nil, err
		}
		if r.SealHash == nil {
			r.Repeatable, seals[i] = false, fence.NewSeal()
			r.SealHash = seals[i].Hash()
		}
	}
	return valid, seals, leasing.Distinct(valid, func(r leasing.Request) string { return r.Resource })
}

// taker is [Store.Take] or a wait.
type taker func(ctx context.Context, r leasing.Request) (Taken, error)

// takeAndArm takes all leases and arms them.
func (s *Source) takeAndArm(ctx context.Context, all []leasing.Request, take taker) ([]Taken, error) {
	for try := 1; ; try++ {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		taken, err := s.takeAll(ctx, all, take)
		if err != nil {
			return nil, err
		}
		raised, err := s.arm(ctx, all, taken)
		if err == nil {
			return taken, nil
		}
		low, ok := errors.AsType[*fence.NotRaisedError](err)
		if !ok {
			if !raised || !repeatable(all) {
				s.giveBack(taken)
			}
			return nil, err
		}
		s.freeNow(ctx, taken) // because the next attempt needs them
		if try == armTries {
			return nil, fmt.Errorf("%w: %w", leasing.ErrHeld, err)
		}
		if err := s.cfg.Store.Raise(ctx, low.Recorded); err != nil {
			return nil, err
		}
	}
}

// takeAll takes the leases, and renews those that it has. After an error it holds none, unless a repeat of the requests
// may have found all of them.
func (s *Source) takeAll(ctx context.Context, all []leasing.Request, take taker) ([]Taken, error) {
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return strings.Compare(all[i].Resource, all[j].Resource) })
	taken := make([]Taken, len(all))
	for at, i := range order {
		keep := make([]func(context.Context) error, at)
		for n, had := range order[:at] {
			keep[n] = func(ctx context.Context) error { return s.keep(ctx, &taken[had], all[had].TTL) }
		}
		waiting, stop := renewal.While(ctx, keep)
		r := all[i]
		r.Repeatable = at == len(order)-1 && repeatable(all)
		has := at
		t, err := take(waiting, r)
		if err == nil {
			taken[i] = t
			has++
		}
		lost := stop()
		if kept, ok := errors.AsType[*KeptError](err); ok {
			if lost == nil {
				return nil, kept.Err
			}
			kept.GiveBack() // a repeat needs all of the leases
		}
		if err = cmp.Or(lost, err); err == nil {
			continue
		}
		had := make([]Taken, has)
		for n, i := range order[:has] {
			had[n] = taken[i]
		}
		s.freeNow(ctx, had)
		return nil, err
	}
	return taken, nil
}

// keep renews a lease until ctx ends. It fails only if the lease is lost.
func (s *Source) keep(ctx context.Context, t *Taken, ttl time.Duration) error {
	return renewal.Lease{
		TTL: ttl, Deadline: func() clock.Instant { return t.Deadline },
		Passing: func(err error) bool { return !errors.Is(err, leasing.ErrLost) },
		Extend: func(ctx context.Context) error {
			one, cancel := t.Deadline.Bound(ctx)
			defer cancel()
			deadline, err := s.cfg.Store.Extend(one, t.ref(), ttl)
			switch {
			case err == nil:
				t.Deadline = deadline
			case ctx.Err() == nil && t.Deadline.Passed() && !errors.Is(err, leasing.ErrLost):
				return fmt.Errorf("acquire %q: its lease ended while the call waited for other resources: %w: %w", t.Resource, leasing.ErrLost, err)
			}
			return err
		},
	}.Keep(ctx)
}

// wait takes a lease when it is the caller's turn in this process, and this process's turn in the service's queue.
func (s *Source) wait(ctx context.Context, r leasing.Request) (Taken, error) {
	w := s.lines.Enter(r.Resource)
	defer w.Leave()
	if err := w.Await(ctx); err != nil {
		return Taken{}, err
	}
	taken, err := s.cfg.Store.Wait(ctx, r, w)
	if err == nil || !w.waited() || ctx.Err() == nil {
		return taken, err
	}
	kept, ok := errors.AsType[*KeptError](err)
	if !errors.Is(err, fence.ErrUnknown) {
		err = context.Cause(ctx)
	}
	if err = Ended(w.Why(), err); ok {
		err = &KeptError{err, kept.GiveBack}
	}
	return Taken{}, err
}

// repeatable reports whether a repeat of the requests in another process can find the leases by the callers' seals, once
// all fences are raised. It may have extended and returned them, so only their TTL ends them.
func repeatable(all []leasing.Request) bool {
	return !slices.ContainsFunc(all, func(r leasing.Request) bool { return !r.Repeatable })
}

// arm raises the fences, in the order of the requests. raised: all may be raised, even after an error.
func (s *Source) arm(ctx context.Context, all []leasing.Request, taken []Taken) (raised bool, err error) {
	if s.cfg.Armer != nil {
		arms := make([]fence.Arming, len(all))
		for i, t := range taken {
			arms[i] = fence.Arming{Resource: t.Resource, Token: t.Token, SealHash: all[i].SealHash, Holder: all[i].Holder}
			if floor := s.cfg.Armer.Floor(t.Resource); floor >= t.Token {
				return false, &fence.NotRaisedError{Resource: t.Resource, Offered: t.Token, Recorded: floor}
			}
		}
		if err := s.cfg.Armer.Arm(ctx, arms...); err != nil {
			return mayRaise(ctx, err), err
		}
	}
	for i, t := range taken {
		if t.Deadline.Passed() {
			return true, fmt.Errorf("acquire %q: the TTL of %v ended before it was acquired: %w", t.Resource, all[i].TTL, leasing.ErrLost)
		}
	}
	return true, nil
}

// mayRaise reports whether the fences may be raised after arming has failed.
func mayRaise(ctx context.Context, err error) bool {
	return errors.Is(err, fence.ErrUnknown) || ctx.Err() != nil && !errors.Is(err, fence.ErrNotRaised)
}

const (
	backPause  = 200 * time.Millisecond
	backPauses = 2 * time.Second // at most
)

// giveBack frees, in the background, what gives no lease. If the
// service does not answer, it retries for as long as the leases live.
func (s *Source) giveBack(taken []Taken) {
	s.life.InBackground(func(ctx context.Context) {
		for pause := backPause; !s.freeAll(ctx, taken); pause = min(2*pause, backPauses) {
			taken = slices.DeleteFunc(taken, func(t Taken) bool { return t.Deadline.Passed() })
			Pause(ctx, pause)
			if ctx.Err() != nil {
				return
			}
		}
	})
}

// freeNow frees what was taken, even if ctx has ended. What the first try does not free is freed in the background.
func (s *Source) freeNow(ctx context.Context, taken []Taken) {
	if !s.freeAll(context.WithoutCancel(ctx), taken) {
		s.giveBack(taken)
	}
}

// freeAll frees what was taken, and reports whether nothing remains.
func (s *Source) freeAll(ctx context.Context, taken []Taken) bool {
	ctx, cancel := context.WithTimeout(ctx, freeTimeout)
	defer cancel()
	left := 0
	for _, t := range taken {
		if err := s.cfg.Store.Free(ctx, t.ref()); err != nil && !errors.Is(err, leasing.ErrLost) {
			left++
			s.cfg.Logger.DebugContext(ctx, "the lock of a failed acquisition could not be freed; it is tried again, and ends at its TTL", "resource", t.Resource, "error", err)
		}
	}
	return left == 0
}

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
