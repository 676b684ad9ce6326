package leases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// armTries bounds how often leases are taken again because a fence is higher.
const armTries = 3

// taker is [Store.Take] or a wait.
type taker func(ctx context.Context, r leasing.Request) (Taken, error)

// TryAcquire takes the lease of a resource if it is free, even if others wait for it.
func (s *Source) TryAcquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	return s.one(ctx, r, s.cfg.Store.Take)
}

// Acquire takes the lease of a resource, waiting while another holds it. Callers of this Source are served in the order
// in which they asked. The first of them queues in the service.
func (s *Source) Acquire(ctx context.Context, r leasing.Request) (leasing.Lease, error) {
	return s.one(ctx, r, s.wait)
}

func (s *Source) one(ctx context.Context, r leasing.Request, take taker) (leasing.Lease, error) {
	r, err := s.validate(r)
	if err != nil {
		return leasing.Lease{}, err
	}
	ctx, cancel, err := s.life.Open(ctx)
	if err != nil {
		return leasing.Lease{}, err
	}
	defer cancel()
	leases, err := s.each(ctx, []leasing.Request{r}, take)
	if err != nil {
		return leasing.Lease{}, err
	}
	return leases[0], nil
}

// TryAcquireAll takes the leases one after the other, in the byte order of the names. If one is held it gives back
// those that it has.
func (s *Source) TryAcquireAll(ctx context.Context, all []leasing.Request) ([]leasing.Lease, error) {
	return s.all(ctx, all, s.cfg.Store.Take)
}

// AcquireAll waits for each lease in that order, so that two callers with common resources never deadlock. It renews
// the leases that it has while it waits.
func (s *Source) AcquireAll(ctx context.Context, all []leasing.Request) ([]leasing.Lease, error) {
	return s.all(ctx, all, s.wait)
}

func (s *Source) all(ctx context.Context, all []leasing.Request, take taker) ([]leasing.Lease, error) {
	all, err := s.validateAll(all)
	if err != nil {
		return nil, err
	}
	ctx, cancel, err := s.life.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	return s.each(ctx, all, take)
}

// each takes all leases and arms them.
func (s *Source) each(ctx context.Context, all []leasing.Request, take taker) ([]leasing.Lease, error) {
	for try := 1; ; try++ {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		taken, err := s.takeAll(ctx, all, take)
		if err != nil {
			return nil, err
		}
		leases, raised, err := s.arm(ctx, all, taken)
		if err == nil {
			return leases, nil
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

// wait takes a lease when it is the caller's turn in this process, and this process's turn in the service's queue.
func (s *Source) wait(ctx context.Context, r leasing.Request) (Taken, error) {
	turn := s.lines.enter(r.Resource)
	defer s.lines.leave(r.Resource, turn)
	if err := await(ctx, turn); err != nil {
		return Taken{}, ended(s.lines.why(r.Resource), err)
	}
	waits := false
	taken, err := s.cfg.Store.Wait(ctx, r, func(why error) {
		waits = true
		s.lines.waits(r.Resource, why)
	})
	if err != nil && waits && ctx.Err() != nil {
		return Taken{}, ended(s.lines.why(r.Resource), context.Cause(ctx))
	}
	return taken, err
}

// ended returns the error of a wait that failed.
func ended(why, err error) error {
	if errors.Is(err, leasing.ErrClosed) {
		return err // the holder no longer matters
	}
	if why == nil {
		return err
	}
	return fmt.Errorf("%w: %w", why, err)
}

// repeatable reports whether a repeat of the requests in another process can find the leases by the callers' seals, once
// all fences are raised. It may have extended and returned them, so only their TTL ends them.
func repeatable(all []leasing.Request) bool {
	return !slices.ContainsFunc(all, func(r leasing.Request) bool { return !r.Repeatable || r.SealHash == nil })
}

// arm raises the fences, in the order of the requests, and returns the leases. raised: all may be raised, even after an
// error.
func (s *Source) arm(ctx context.Context, all []leasing.Request, taken []Taken) (_ []leasing.Lease, raised bool, err error) {
	leases, arms := make([]leasing.Lease, len(all)), make([]fence.Arming, len(all))
	for i, t := range taken {
		a := fence.Arming{Resource: t.Resource, Token: t.Token, SealHash: all[i].SealHash, Holder: all[i].Holder}
		leases[i] = leasing.Lease{Grant: fence.Grant{Resource: t.Resource, Token: t.Token}, Owner: t.Owner, Deadline: t.Deadline}
		if a.SealHash == nil {
			leases[i].Grant.Seal = fence.NewSeal()
			a.SealHash = leases[i].Grant.Seal.Hash()
		}
		arms[i] = a
	}
	if raised, err = s.armAll(ctx, arms); err != nil {
		return nil, raised, err
	}
	for i, t := range taken {
		if !time.Now().Before(t.Deadline) {
			return nil, raised, fmt.Errorf("acquire %q: the TTL of %v ended before it was acquired: %w", t.Resource, all[i].TTL, leasing.ErrLost)
		}
	}
	return leases, raised, nil
}

func (s *Source) armAll(ctx context.Context, arms []fence.Arming) (raised bool, err error) {
	if s.cfg.Armer == nil {
		return false, nil
	}
	if floorer, ok := s.cfg.Armer.(leasing.Floorer); ok {
		for _, a := range arms {
			if floor := floorer.Floor(a.Resource); floor >= a.Token {
				return false, &fence.NotRaisedError{Resource: a.Resource, Offered: a.Token, Recorded: floor}
			}
		}
	}
	if together, ok := s.cfg.Armer.(leasing.AllArmer); ok && len(arms) > 1 {
		err := together.ArmAll(ctx, arms)
		return mayRaise(ctx, err), err
	}
	for i, a := range arms {
		if err := s.cfg.Armer.Arm(ctx, a); err != nil {
			return i == len(arms)-1 && mayRaise(ctx, err), err
		}
	}
	return true, nil
}

// mayRaise reports whether the fences may be raised after arming with this result.
func mayRaise(ctx context.Context, err error) bool {
	return err == nil || errors.Is(err, fence.ErrUnknown) || ctx.Err() != nil && !errors.Is(err, fence.ErrNotRaised)
}

const (
	backPause  = 200 * time.Millisecond
	backPauses = 2 * time.Second // at most
)

// giveBack frees, in the background, what gives no lease. If the
// service does not answer, it retries for as long as the leases live.
func (s *Source) giveBack(taken []Taken) {
	s.InBackground(func(ctx context.Context) {
		for pause := backPause; !s.freeAll(ctx, taken); pause = min(2*pause, backPauses) {
			taken = slices.DeleteFunc(taken, func(t Taken) bool { return !time.Now().Before(t.Deadline) })
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
