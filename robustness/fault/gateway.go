package fault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

var gatewayFaults = []Fault{
	{
		Name: "gateway-kill", What: "gateways are killed; their supervisor starts them again", Weight: 5,
		Shortest: 10 * time.Millisecond, Longest: 3 * time.Second, Tail: 5 * time.Second, Run: gatewayKill,
	},
	{
		Name: "gateway-stop", What: "gateways are stopped in order, draining, and started again", Weight: 4,
		Shortest: 10 * time.Millisecond, Longest: time.Second, Tail: 8 * time.Second, Run: gatewayStop,
	},
	{
		Name: "gateway-freeze", What: "gateways stand still", Weight: 5,
		Shortest: 100 * time.Millisecond, Longest: 6 * time.Second, Tail: time.Second, Run: gatewayFreeze,
	},
	{
		Name: "gateway-clock", What: "the wall clocks of gateways jump, and are set right again", Weight: 3,
		Shortest: 500 * time.Millisecond, Longest: 6 * time.Second, Tail: time.Second, Run: gatewayClock,
	},
}

func (s *Stage) someGateways(ctx context.Context, aspect string) ([]Gateway, func()) {
	of := s.Gateways()
	return claim(ctx, s, of, nameOf, aspect, s.many(len(of)))
}

// gatewayKill kills once or several times, so that a gateway may die during its start.
func gatewayKill(ctx context.Context, s *Stage) error {
	of, release := s.someGateways(ctx, "run")
	defer release()
	s.logf("%v", names(of))
	end := time.Now().Add(s.For)
	for {
		for _, g := range of {
			if err := g.Kill(); err != nil {
				return fmt.Errorf("%w: %s: %w", ErrNotDone, g.Name(), err)
			}
		}
		if !wait(ctx, s.between(200*time.Millisecond, 2*time.Second)) || time.Now().After(end) {
			return nil
		}
	}
}

// gatewayStop returns when the gateways have ended; the supervisor restarts them.
func gatewayStop(ctx context.Context, s *Stage) error {
	of, release := s.someGateways(ctx, "run")
	defer release()
	s.logf("%v", names(of))
	after, cancel := healing(ctx) // a requested stop is completed in any case
	defer cancel()
	var all errgroup.Group
	for _, g := range of {
		late := s.between(0, s.For)
		all.Go(func() error {
			if !wait(ctx, late) {
				return nil
			}
			if err := g.Stop(after); err != nil {
				return fmt.Errorf("%w: %s: %w", ErrNotDone, g.Name(), err)
			}
			return nil
		})
	}
	return all.Wait()
}

func gatewayFreeze(ctx context.Context, s *Stage) error {
	of, release := s.someGateways(ctx, "run")
	defer release()
	s.logf("%v", names(of))
	return freeze(ctx, of, s.For)
}

func gatewayClock(ctx context.Context, s *Stage) error {
	of, release := s.someGateways(ctx, "clock")
	defer release()
	return setClocks(ctx, s, of, s.jump(far))
}

// anyGateway draws a gateway that an operator reaches, and tries the others if it is unavailable.
func anyGateway(ctx context.Context, s *Stage, ask func(ctx context.Context, g Gateway) error) error {
	of := slices.Clone(s.Gateways())
	s.Rand.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
	var failed []error
	for _, g := range of {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		err := ask(ctx, g)
		cancel()
		if err == nil {
			return nil
		}
		failed = append(failed, fmt.Errorf("%s: %w", g.Name(), err))
	}
	return errors.Join(failed...)
}
