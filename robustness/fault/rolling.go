package fault

import (
	"context"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/robustness/cluster"
)

// A rolling restart is an operator's action that restarts the next part only when the previous one is back. If its
// context ends it stops, with the current part back in place.
var rollingFaults = []Fault{
	{
		Name: "rolling-gateways", What: "every gateway is stopped and started again, one after the other", Weight: 2,
		Shortest: 10 * time.Millisecond, Longest: 10 * time.Millisecond, Tail: 20 * time.Second, Run: rollingGateways,
	},
	{
		Name: "rolling-redis", What: "every node is restarted, the next when the former is admitted", Weight: 2,
		Shortest: 10 * time.Millisecond, Longest: 10 * time.Millisecond, Tail: 20 * time.Second, Run: rollingRedis,
	},
	{
		Name: "rolling-pg", What: "the standby and then the primary are restarted", Weight: 2, Needs: NeedsStandby,
		Shortest: 10 * time.Millisecond, Longest: 10 * time.Millisecond, Tail: 10 * time.Second, Run: rollingPostgres,
	},
}

func rollingGateways(ctx context.Context, s *Stage) error {
	of, release := claim(ctx, s, s.Gateways(), nameOf, "run", len(s.Gateways()))
	defer release()
	after, cancel := healing(ctx)
	defer cancel()
	for _, g := range of {
		if ctx.Err() != nil {
			return nil
		}
		if err := g.Stop(after); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrNotDone, g.Name(), err)
		}
		if err := s.back(ctx, g.Name(), g.Ready); err != nil {
			return err
		}
	}
	return nil
}

func rollingRedis(ctx context.Context, s *Stage) error {
	of, release := claim(ctx, s, s.Nodes(), nameOf, "run", len(s.Nodes()))
	defer release()
	for _, n := range of {
		if ctx.Err() != nil {
			return nil
		}
		after, cancel := healing(ctx)
		err := n.Kill()
		if err == nil {
			err = n.Restart(after, cluster.Own)
		}
		cancel()
		if err != nil {
			return fmt.Errorf("%w: %s: %w", ErrNotHealed, n.Name(), err)
		}
		if err := s.back(ctx, n.Name(), n.Admitted); err != nil {
			return err
		}
	}
	return nil
}

func rollingPostgres(ctx context.Context, s *Stage) error {
	release, ok := s.one(ctx, "postgres/run")
	if !ok {
		return nil
	}
	defer release()
	pg := s.Postgres()
	for _, standby := range []bool{true, false} {
		if ctx.Err() != nil {
			return nil
		}
		after, cancel := healing(ctx)
		err := pg.Restart(after, standby)
		cancel()
		if err != nil {
			return fmt.Errorf("%w: standby %v: %w", ErrNotHealed, standby, err)
		}
		if err := s.back(ctx, "the standby", pg.CaughtUp); err != nil {
			return err
		}
	}
	return nil
}

// back waits until a part works again. It reports no error if ctx ended first.
func (s *Stage) back(ctx context.Context, name string, ask func(context.Context) error) error {
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	from := time.Now()
	err := until(limit, ask)
	if err != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: %s within %v: %w", ErrNotHealed, name, patience, err)
	}
	s.logf("%s is back after %v", name, time.Since(from).Round(time.Millisecond))
	return nil
}
