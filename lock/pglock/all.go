package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// TryAcquireAll takes the leases one after the other, in the byte order of the names. If one is held it gives back
// those that it has.
func (s *Source) TryAcquireAll(ctx context.Context, all []leasing.Request) ([]leasing.Lease, error) {
	return s.each(ctx, all, s.TryAcquire)
}

// AcquireAll waits for each lease in that order, so that two callers with common resources never deadlock. It renews
// the leases that it has while it waits.
func (s *Source) AcquireAll(ctx context.Context, all []leasing.Request) ([]leasing.Lease, error) {
	return s.each(ctx, all, s.Acquire)
}

func (s *Source) each(ctx context.Context, all []leasing.Request, acquire func(context.Context, leasing.Request) (leasing.Lease, error)) ([]leasing.Lease, error) {
	if err := s.validateAll(all); err != nil {
		return nil, err
	}
	ctx, cancel, err := s.life.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return strings.Compare(all[i].Resource, all[j].Resource) })
	leases := make([]leasing.Lease, len(all))
	for at, i := range order {
		waiting, stop := s.keep(ctx, all, leases, order[:at])
		leases[i], err = acquire(waiting, all[i])
		has := at
		if err == nil {
			has++
		}
		if lostErr := stop(); lostErr != nil {
			err = lostErr
		}
		if err == nil && has == len(order) {
			err = alive(leases)
		}
		if err != nil {
			if at == len(order)-1 && repeatable(all, err) {
				return nil, err
			}
			s.freeNow(ctx, all, leases, order[:has])
			return nil, err
		}
	}
	return leases, nil
}

// repeatable reports whether a repeat of the requests in another process may have found all their leases, after the last
// acquisition has failed with err.
func repeatable(all []leasing.Request, err error) bool {
	_, kept := errors.AsType[*keptError](err)
	return kept && !slices.ContainsFunc(all, func(r leasing.Request) bool { return !r.Repeatable || r.SealHash == nil })
}

// freeNow frees leases that were taken in vain, even if ctx has ended. What the first try does not free is given back in
// the background.
func (s *Source) freeNow(ctx context.Context, all []leasing.Request, leases []leasing.Lease, had []int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freeTimeout)
	defer cancel()
	for _, i := range had {
		s.endOther(ctx, leases[i].Ref())
		// a renewal may have given it its whole TTL
		a := &attempt{resource: all[i].Resource, owner: leases[i].Owner, ttl: all[i].TTL, start: time.Now()}
		a.token.Store(int64(leases[i].Grant.Token))
		if freed, _ := s.freeBack(ctx, a); !freed {
			s.life.InBackground(func(context.Context) { s.giveBack(a) })
		}
	}
}

// alive fails if a lease has ended.
func alive(leases []leasing.Lease) error {
	for _, lease := range leases {
		if !time.Now().Before(lease.Deadline) {
			return fmt.Errorf("acquire %q: its lease ended while the call waited for other resources: %w", lease.Grant.Resource, leasing.ErrLost)
		}
	}
	return nil
}

func (s *Source) validateAll(all []leasing.Request) error {
	if len(all) == 0 {
		return &fence.InvalidError{Field: "resources", Reason: "are missing"}
	}
	named := make(map[string]bool, len(all))
	for _, r := range all {
		if _, err := s.validate(r); err != nil {
			return err
		}
		if named[r.Resource] {
			return &fence.InvalidError{Field: "resources", Reason: "name one resource twice"}
		}
		named[r.Resource] = true
	}
	return nil
}

// keep renews the leases of had until stop is called. stop reports a lost lease, and sets the new deadlines. The
// returned context ends when a lease is lost, so that the wait for the next one ends too.
func (s *Source) keep(ctx context.Context, all []leasing.Request, leases []leasing.Lease, had []int) (waiting context.Context, stop func() error) {
	if len(had) == 0 {
		return ctx, func() error { return nil }
	}
	every := all[had[0]].TTL
	for _, i := range had {
		every = min(every, all[i].TTL)
	}
	waiting, cancel := context.WithCancelCause(ctx)
	result := make(chan error, 1)
	go func() {
		tick := time.NewTicker(every / 6)
		defer tick.Stop()
		for {
			for _, i := range had {
				if err := s.renew(waiting, &leases[i], all[i].TTL); err != nil {
					cancel(err)
					result <- err
					return
				}
			}
			select {
			case <-waiting.Done():
				result <- nil
				return
			case <-tick.C:
			}
		}
	}()
	return waiting, func() error {
		cancel(nil)
		return <-result
	}
}

// renew extends a lease with less than two thirds of its time left. It fails only if the lease is lost; other errors
// are retried at the next look.
func (s *Source) renew(ctx context.Context, lease *leasing.Lease, ttl time.Duration) error {
	if time.Until(lease.Deadline) >= ttl*2/3 {
		return nil
	}
	one, cancel := context.WithDeadline(ctx, lease.Deadline)
	defer cancel()
	valid, err := s.Extend(one, lease.Ref(), ttl)
	switch {
	case err == nil:
		lease.Deadline = time.Now().Add(valid)
	case ctx.Err() != nil: // the wait is over
	case errors.Is(err, leasing.ErrLost):
		return err
	case !time.Now().Before(lease.Deadline):
		return fmt.Errorf("%w: %w", leasing.ErrLost, err)
	}
	return nil
}
