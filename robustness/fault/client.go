package fault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fencegate/fencegate/robustness/client"
	"github.com/fencegate/fencegate/robustness/history"
)

var clientFaults = []Fault{
	{
		Name: "client-stop", What: "client processes stand still, for less than a lease or longer", Weight: 8,
		Shortest: 200 * time.Millisecond, Longest: 6 * time.Second, Tail: time.Second, Run: clientStop,
	},
	{
		Name: "client-stutter", What: "client processes are stopped and go on, again and again", Weight: 5,
		Shortest: time.Second, Longest: 8 * time.Second, Tail: time.Second, Run: clientStutter,
	},
	{
		Name: "client-kill", What: "client processes are killed and started again", Weight: 4,
		Shortest: 50 * time.Millisecond, Longest: 4 * time.Second, Tail: 4 * time.Second, Run: clientKill,
	},
	{
		Name: "client-clock", What: "the wall clocks of client processes jump, and are set right again", Weight: 3,
		Shortest: 500 * time.Millisecond, Longest: 6 * time.Second, Tail: time.Second, Run: clientClock,
	},
}

func nameOf[T Process](p T) string { return p.Name() }

func names[T Process](of []T) []string {
	var all []string
	for _, p := range of {
		all = append(all, p.Name())
	}
	slices.Sort(all)
	return all
}

// freeze stops the processes for d, if they can be stopped, and resumes them.
func freeze[T Process](ctx context.Context, of []T, d time.Duration) error {
	var failed []error
	for _, p := range of {
		if err := p.Freeze(); err != nil {
			failed = append(failed, fmt.Errorf("%w: %s: %w", ErrNotDone, p.Name(), err))
		}
	}
	wait(ctx, d)
	for _, p := range of {
		if err := p.Thaw(); err != nil {
			failed = append(failed, fmt.Errorf("%w: %s: %w", ErrNotHealed, p.Name(), err))
		}
	}
	return errors.Join(failed...)
}

func (s *Stage) someClients(ctx context.Context, aspect string) ([]Client, func()) {
	of := s.Clients()
	return claim(ctx, s, of, nameOf, aspect, s.many(len(of)))
}

func clientStop(ctx context.Context, s *Stage) error {
	of, release := s.someClients(ctx, "run")
	defer release()
	s.logf("%v", names(of))
	return s.stopClients(ctx, of, s.For)
}

func (s *Stage) stopClients(ctx context.Context, of []Client, d time.Duration) error {
	from := history.Now()
	err := freeze(ctx, of, d)
	for _, c := range of {
		s.stopped(c.Number(), from)
	}
	return err
}

func clientStutter(ctx context.Context, s *Stage) error {
	of, release := s.someClients(ctx, "run")
	defer release()
	s.logf("%v", names(of))
	end := time.Now().Add(s.For)
	for time.Now().Before(end) && ctx.Err() == nil {
		if err := s.stopClients(ctx, of, s.between(20*time.Millisecond, 700*time.Millisecond)); err != nil {
			return err
		}
		wait(ctx, s.between(10*time.Millisecond, 500*time.Millisecond))
	}
	return nil
}

func clientKill(ctx context.Context, s *Stage) error {
	of, release := s.someClients(ctx, "run")
	defer release()
	s.logf("%v", names(of))
	var failed []error
	from := history.Now()
	for _, c := range of {
		if err := c.Kill(); err != nil {
			failed = append(failed, fmt.Errorf("%w: %s: %w", ErrNotDone, c.Name(), err))
		}
	}
	wait(ctx, s.For)
	after, cancel := healing(ctx)
	defer cancel()
	work := client.Order{Do: client.Work, Round: s.Scene.Round, Resources: s.Scene.Resources}
	var all errgroup.Group
	for _, c := range of {
		all.Go(func() error {
			defer s.stopped(c.Number(), from)
			if err := c.Restart(after, work); err != nil {
				return fmt.Errorf("%w: %s: %w", ErrNotHealed, c.Name(), err)
			}
			return nil
		})
	}
	return errors.Join(append(failed, all.Wait())...)
}

func clientClock(ctx context.Context, s *Stage) error {
	of, release := s.someClients(ctx, "clock")
	defer release()
	return setClocks(ctx, s, of, s.jump(far))
}

// clocked is a process whose wall clock can be set.
type clocked interface {
	Process
	SetClock(d time.Duration) error
}

var reaches = []time.Duration{
	2 * time.Millisecond, 20 * time.Millisecond, 200 * time.Millisecond, 3 * time.Second, time.Minute, far,
}

// jump draws the offset of a clock: back or ahead, up to a limit that is drawn first.
func (s *Stage) jump(limit time.Duration) time.Duration {
	reach := min(reaches[s.Rand.IntN(len(reaches))], limit)
	return s.between(-reach, reach)
}

// setClocks sets the clocks' offset to d, and later back to zero.
func setClocks[T clocked](ctx context.Context, s *Stage, of []T, d time.Duration) error {
	s.logf("%v by %v", names(of), d)
	set := func(d time.Duration, sort error) error {
		var failed []error
		for _, p := range of {
			if err := p.SetClock(d); err != nil {
				failed = append(failed, fmt.Errorf("%w: clock of %s: %w", sort, p.Name(), err))
			}
		}
		return errors.Join(failed...)
	}
	err := set(d, ErrNotDone)
	wait(ctx, s.For)
	return errors.Join(err, set(0, ErrNotHealed))
}
