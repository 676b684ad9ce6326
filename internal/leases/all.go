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

// takeAll takes the leases in the byte order of the names, and renews those that it has. After an error it holds none.
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
			s.freeNow(ctx, back)
			return nil, err
		}
	}
	return taken, nil
}

// keep renews the leases of had until stop is called. stop reports a lost lease, and sets the new deadlines. The
// returned context ends when a lease is lost, so that the wait for the next one ends too.
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

// renew extends a lease with less than two thirds of its time left. It fails only if the lease is lost; other errors
// are retried at the next look.
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
	case errors.Is(err, leasing.ErrLost): // also if the wait is over: the call must not return it
		return err
	case ctx.Err() != nil: // the wait is over
	case !time.Now().Before(t.Deadline):
		return fmt.Errorf("acquire %q: its lease ended while the call waited for other resources: %w: %w", t.Resource, leasing.ErrLost, err)
	}
	return nil
}
