package lock

import (
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
	"github.com/fencegate/fencegate/lock/internal/admission"
)

// AcquireAll takes the leases of several resources, all or none. It waits until ctx ends while others hold some of
// them. The leases come in the order of the given names; a name given twice is an error. The options apply to each
// lease.
//
// Locks are taken in the byte order of the names, so that two callers cannot deadlock. Arming follows in the same
// order, in one transaction. While it waits for one lock, it renews those that
// it has.
func (l *Locker) AcquireAll(ctx context.Context, resources []string, opts ...AcquireOption) ([]*Lease, error) {
	asked := make([]acquisition, len(resources))
	for i, resource := range resources { // before any of them is taken
		o, err := l.options(resource, opts)
		if err != nil {
			return nil, err
		}
		if o.owner != nil {
			return nil, &fence.InvalidError{Field: "options", Reason: "name an owner, which is for one resource"}
		}
		asked[i] = acquisition{resource, o}
	}
	taken, err := l.acquireAllMeasured(ctx, asked, l.waiting)
	if err != nil {
		return nil, err
	}
	leases := make([]*Lease, len(taken))
	for i, a := range taken {
		leases[i] = a.lease(ctx)
	}
	return leases, nil
}

// acquisition is one resource of several.
type acquisition struct {
	resource string
	o        acquireOptions
}

// patience is [Locker.waiting], or a single try of a held lock.
type patience func(ctx context.Context, resource string, try func(floor fence.Token) error) error

func once(_ context.Context, _ string, try func(floor fence.Token) error) error { return try(0) }

// acquireAllMeasured reports the result to the metrics: each acquired lease, or one failure.
func (l *Locker) acquireAllMeasured(ctx context.Context, asked []acquisition, wait patience) ([]*attempt, error) {
	begun := time.Now()
	var taken []*attempt
	err := l.acquiring(ctx, func(ctx context.Context) (err error) {
		taken, err = l.acquireAll(ctx, asked, wait)
		return err
	})
	if err != nil {
		_, err = l.measured(nil, err, begun)
		return nil, err
	}
	for _, a := range taken {
		_, _ = l.measured(a, nil, begun)
	}
	return taken, nil
}

// acquireAll takes and arms all, and returns them in the order of the request.
func (l *Locker) acquireAll(ctx context.Context, asked []acquisition, wait patience) ([]*attempt, error) {
	if err := leasing.Distinct(asked, func(one acquisition) string { return one.resource }); err != nil {
		return nil, err
	}
	order := slices.SortedFunc(slices.Values(asked), func(a, b acquisition) int { return strings.Compare(a.resource, b.resource) })
	names := make([]string, len(order))
	for i, one := range order {
		names[i] = one.resource
	}
	taken := make(map[string]*attempt, len(order))
	complete := false
	defer func() {
		if complete || repeatable(names, taken) {
			return
		}
		for _, a := range taken {
			a.giveBack()
		}
	}()
	for _, one := range order {
		if err := l.takeNext(ctx, one, taken, wait); err != nil {
			return nil, err
		}
	}
	if err := l.armAll(ctx, names, taken); err != nil {
		return nil, err
	}
	complete = true
	all := make([]*attempt, len(asked))
	for i, one := range asked {
		all[i] = taken[one.resource]
	}
	return all, nil
}

// repeatable is [attempt.repeatable] for several: a repeat returns all leases or none.
func repeatable(names []string, taken map[string]*attempt) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return taken[name] == nil || !taken[name].repeatable() })
}

// takeNext takes one more lock and renews the others meanwhile. If one of those is lost, takeNext fails, even if it
// got the next one at that moment.
func (l *Locker) takeNext(ctx context.Context, one acquisition, taken map[string]*attempt, wait patience) error {
	keep := make([]func(context.Context) error, 0, len(taken))
	for _, a := range taken {
		keep = append(keep, a.renew)
	}
	inside, stop := renewal.While(ctx, keep)
	err := wait(inside, one.resource, func(floor fence.Token) error {
		a, err := l.attempt(inside, one.resource, one.o, floor, (*attempt).take)
		if err == nil {
			taken[one.resource] = a
		}
		return err
	})
	if lost := stop(); lost != nil {
		return lost
	}
	return err
}

// renew renews a lock before it becomes a lease, until ctx ends.
func (a *attempt) renew(ctx context.Context) error {
	return renewal.Lease{
		TTL: a.o.ttl, Deadline: func() clock.Instant { return a.deadline }, Random: a.l.dice,
		Passing: func(err error) bool { return Retryable(err) && !a.deadline.Passed() },
		Extend: func(ctx context.Context) error {
			deadline, err := a.l.extend(ctx, leasing.Ref{Resource: a.resource, Owner: a.owner}, a.o.ttl, a.deadline)
			switch {
			case err == nil:
				a.deadline = deadline
			case a.deadline.Passed() && !errors.Is(err, ErrLost):
				return a.ranOut()
			}
			return err
		},
	}.Keep(ctx)
}

// armAll arms what is taken, and checks every deadline afterwards.
func (l *Locker) armAll(ctx context.Context, order []string, taken map[string]*attempt) error {
	if l.cfg.Armer != nil {
		if err := l.armEach(ctx, order, taken); err != nil {
			return err
		}
	}
	for _, a := range taken {
		if a.deadline.Passed() {
			return a.ranOut()
		}
	}
	return nil
}

func (a *attempt) ranOut() error {
	return fmt.Errorf("acquire %q: the TTL of %v ran out while the others were acquired: %w", a.resource, a.o.ttl, ErrLost)
}

func (l *Locker) armEach(ctx context.Context, order []string, taken map[string]*attempt) error {
	deadline := taken[order[0]].deadline
	armings := make([]fence.Arming, len(order))
	for tries := 1; ; tries++ {
		for i, resource := range order {
			armings[i] = taken[resource].arming()
			deadline = deadline.Earlier(taken[resource].deadline)
		}
		bounded, cancel := deadline.Bound(ctx)
		inside, end := l.begin(bounded, "arm", order[0])
		err := l.cfg.Armer.Arm(inside, armings...)
		end(err)
		for _, a := range taken {
			a.raised = mayRaise(bounded, err)
		}
		err = taken[order[0]].armed(bounded, err)
		cancel()
		var low *fence.NotRaisedError
		if !errors.As(err, &low) || tries == maxArms+len(order) || taken[low.Resource] == nil {
			return err
		}
		if low.Recorded >= admission.LastToken {
			return admission.UsedUpError(low.Resource)
		}
		if err := taken[low.Resource].take(ctx, low.Recorded); err != nil {
			return err
		}
	}
}
