package leases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/fence/leasing"
)

// takeAll takes the leases in the order of the names' bytes, and renews meanwhile those that it has. After an error it
// holds none.
func (s *Source) takeAll(ctx context.Context, all []leasing.Request, take taker) ([]Taken, error) {
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return strings.Compare(all[i].Resource, all[j].Resource) })
	taken := make([]Taken, len(all))
	var has []int
	for _, i := range order {
		waiting, stop := s.keep(ctx, all, taken, has)
		t, err := take(waiting, all[i])
		if err == nil {
			taken[i] = t
			has = append(has, i)
		}
		if lost := stop(); lost != nil {
			err = lost
		}
		if err != nil {
			back := make([]Taken, len(has))
			for n, had := range has {
				back[n] = taken[had]
			}
			s.freeAll(context.WithoutCancel(ctx), back)
			return nil, err
		}
	}
	return taken, nil
}

// keep renews the leases that are had until stop, which reports one that was lost, and sets the new deadlines. The
// context that it returns ends then, too: who waits for one more need not go on.
func (s *Source) keep(ctx context.Context, all []leasing.Request, taken []Taken, had []int) (waiting context.Context, stop func() error) {
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
				if err := s.renew(waiting, &taken[i], all[i].TTL); err != nil {
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

// renew extends a lease with less than two thirds of its time left. It fails where the lease is lost; else the next look
// tries again.
func (s *Source) renew(ctx context.Context, t *Taken, ttl time.Duration) error {
	if time.Until(t.Deadline) >= ttl*2/3 {
		return nil
	}
	one, cancel := context.WithDeadline(ctx, t.Deadline)
	defer cancel()
	deadline, err := s.cfg.Store.Extend(one, t.ref(), ttl)
	switch {
	case err == nil:
		t.Deadline = deadline
	case ctx.Err() != nil: // the wait is over
	case errors.Is(err, leasing.ErrLost):
		return err
	case !time.Now().Before(t.Deadline):
		return fmt.Errorf("acquire %q: its lease ended while the call waited for other resources: %w: %w", t.Resource, leasing.ErrLost, err)
	}
	return nil
}
