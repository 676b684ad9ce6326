package fault

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fencegate/fencegate/robustness/cluster"
)

var redisFaults = []Fault{
	{
		Name: "redis-kill", What: "nodes are killed and come back with what was on their disks", Weight: 5,
		Shortest: 20 * time.Millisecond, Longest: 5 * time.Second, Tail: 3 * time.Second, Run: redisLoss(cluster.Own),
	},
	{
		Name: "redis-older", What: "nodes are killed and come back with an older copy of their data", Weight: 3,
		Shortest: 20 * time.Millisecond, Longest: 4 * time.Second, Tail: 3 * time.Second, Run: redisLoss(cluster.Older),
	},
	{
		Name: "redis-empty", What: "nodes are killed and come back with nothing", Weight: 3,
		Shortest: 20 * time.Millisecond, Longest: 4 * time.Second, Tail: 3 * time.Second, Run: redisLoss(cluster.Empty),
	},
	{
		Name: "redis-freeze", What: "nodes stand still", Weight: 6,
		Shortest: 30 * time.Millisecond, Longest: 5 * time.Second, Tail: time.Second, Run: redisFreeze,
	},
	{
		Name: "redis-flush", What: "nodes lose their data, the lock's counters or its scripts while they run on", Weight: 4,
		Shortest: 10 * time.Millisecond, Longest: 3 * time.Second, Tail: time.Second, Run: redisFlush,
	},
	{
		Name: "redis-clock", What: "the clocks of nodes jump, ahead or back, and are set right again", Weight: 5,
		Shortest: 200 * time.Millisecond, Longest: 6 * time.Second, Tail: time.Second, Run: redisClock,
	},
}

func (s *Stage) someNodes(ctx context.Context, aspect string) ([]Node, func()) {
	of := s.Nodes()
	return claim(ctx, s, of, nameOf, aspect, s.many(len(of)))
}

func redisLoss(data Data) func(context.Context, *Stage) error {
	return func(ctx context.Context, s *Stage) error {
		of, release := s.someNodes(ctx, "run")
		defer release()
		s.logf("%v", names(of))
		var failed []error
		each := func(do func(n Node) error) {
			for _, n := range of {
				if err := do(n); err != nil {
					failed = append(failed, fmt.Errorf("%w: %s: %w", ErrNotDone, n.Name(), err))
				}
			}
		}
		if data == cluster.Older && s.odds(2) { // otherwise the copy is from the round's beginning
			each(Node.Keep)
			wait(ctx, s.between(0, s.For))
		}
		each(Node.Kill)
		wait(ctx, s.between(0, s.For))
		after, cancel := healing(ctx)
		defer cancel()
		var all errgroup.Group
		for _, n := range of {
			all.Go(func() error { return restartNode(after, n, data) })
		}
		return errors.Join(append(failed, all.Wait())...)
	}
}

// restartNode starts a node with the data, or with its own if that fails, so that it does not stay down.
func restartNode(ctx context.Context, n Node, data Data) error {
	err := n.Restart(ctx, data)
	if err == nil {
		return nil
	}
	if data == cluster.Own {
		return fmt.Errorf("%w: %s: %w", ErrNotHealed, n.Name(), err)
	}
	return errors.Join(fmt.Errorf("%w: %s: %w", ErrNotDone, n.Name(), err), restartNode(ctx, n, cluster.Own))
}

func redisFreeze(ctx context.Context, s *Stage) error {
	of, release := s.someNodes(ctx, "run")
	defer release()
	s.logf("%v", names(of))
	return freeze(ctx, of, s.For)
}

// redisFlush flushes one node after the other within its time, or all at once.
func redisFlush(ctx context.Context, s *Stage) error {
	of, release := s.someNodes(ctx, "run") // a stopped node does not answer
	defer release()
	part := []Part{cluster.Everything, cluster.Hash, cluster.Scripts}[s.Rand.IntN(3)]
	apart := time.Duration(0)
	if s.odds(2) {
		apart = s.For / time.Duration(max(1, len(of)))
	}
	s.logf("%s of %v, %v apart", part, names(of), apart)
	var all errgroup.Group
	for i, n := range of {
		all.Go(func() error {
			if !wait(ctx, time.Duration(i)*apart) {
				return nil
			}
			after, cancel := healing(ctx)
			defer cancel()
			if err := n.Flush(after, part); err != nil {
				return fmt.Errorf("%w: %s: %w", ErrNotDone, n.Name(), err)
			}
			return nil
		})
	}
	return all.Wait()
}

// redisClock gives some nodes a small clock offset, or the one node of the round a large one.
func redisClock(ctx context.Context, s *Stage) error {
	if d := s.jump(far); d.Abs() > near {
		of := []Node{s.Nodes()[farNode(s.Scene.Round, len(s.Nodes()))]}
		of, release := claim(ctx, s, of, nameOf, "clock", 1)
		defer release()
		return setClocks(ctx, s, of, d)
	}
	of, release := s.someNodes(ctx, "clock")
	defer release()
	return setClocks(ctx, s, of, s.jump(near))
}
