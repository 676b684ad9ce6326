package fault

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/fencegate/fencegate/robustness/client"
	"github.com/fencegate/fencegate/robustness/cluster"
	"github.com/fencegate/fencegate/robustness/history"
)

// partFaults are those of processes, of their clocks and of the machine: names, weights, needs, the shortest and the
// longest duration, and the tail.
var partFaults = []Fault{
	{"client-stop", "client processes stand still, for less than a lease or longer", 8, "", 200 * ms, 6 * sec, sec, clientStop},
	{"client-stutter", "client processes are stopped and go on, again and again", 5, "", sec, 8 * sec, sec, clientStutter},
	{"client-kill", "client processes are killed and started again", 4, "", 50 * ms, 4 * sec, 4 * sec, clientKill},
	{"client-clock", "the wall clocks of client processes jump, and are set right again", 3, "", 500 * ms, 6 * sec, sec, clocks(World.Clients)},

	{"gateway-kill", "gateways are killed; their supervisor starts them again", 5, "", 10 * ms, 3 * sec, 5 * sec, gatewayKill},
	{"gateway-stop", "gateways are stopped in order, draining, and started again", 4, "", 10 * ms, sec, 8 * sec, gatewayStop},
	{"gateway-freeze", "gateways stand still", 5, "", 100 * ms, 6 * sec, sec, frozen(World.Gateways)},
	{"gateway-clock", "the wall clocks of gateways jump, and are set right again", 3, "", 500 * ms, 6 * sec, sec, clocks(World.Gateways)},

	{"redis-kill", "nodes are killed and come back with what was on their disks", 5, NeedsRedis, 20 * ms, 5 * sec, 3 * sec, redisLoss(cluster.Own)},
	{"redis-older", "nodes are killed and come back with an older copy of their data", 3, NeedsRedis, 20 * ms, 4 * sec, 3 * sec, redisLoss(cluster.Older)},
	{"redis-empty", "nodes are killed and come back with nothing", 3, NeedsRedis, 20 * ms, 4 * sec, 3 * sec, redisLoss(cluster.Empty)},
	{"redis-freeze", "nodes stand still", 6, NeedsRedis, 30 * ms, 5 * sec, sec, frozen(World.Nodes)},
	{"redis-flush", "nodes lose their data, the lock's counters or its scripts while they run on", 4, NeedsRedis, 10 * ms, 3 * sec, sec, redisFlush},
	{"redis-clock", "the clocks of nodes jump, ahead or back, and are set right again", 5, NeedsRedis, 200 * ms, 6 * sec, sec, redisClock},

	{"blobs-kill", "the S3 service of the blobs is killed and started again", 4, NeedsBlobs, 10 * ms, 4 * sec, 3 * sec, blobsKill},
	{"blobs-freeze", "the S3 service of the blobs stands still", 4, NeedsBlobs, 100 * ms, 6 * sec, sec, frozen(World.Blobs)},
	{"disk-full", "the blobs' file system is full, or nearly", 3, NeedsDisk, 300 * ms, 6 * sec, sec, diskFull},
	{"busy", "every core is busy with other work", 3, "", sec, 6 * sec, sec, busy},

	{"rolling-gateways", "every gateway is stopped and started again, one after the other", 2, "", 10 * ms, 10 * ms, 20 * sec, rollingGateways},
	{"rolling-redis", "every node is restarted, the next when the former is admitted", 2, NeedsRedis, 10 * ms, 10 * ms, 20 * sec, rollingRedis},
}

// frozen is the fault that some of the processes stand still.
func frozen[T Process](of func(World) []T) func(context.Context, *Stage) error {
	return func(ctx context.Context, s *Stage) error {
		return some(ctx, s, of(s.World), "run", func(of []T) error { return freeze(ctx, of, s.For) })
	}
}

// clocked is a process whose wall clock can be set.
type clocked interface {
	Process
	SetClock(d time.Duration) error
}

// clocks is the fault that the clocks of some of the processes jump.
func clocks[T clocked](of func(World) []T) func(context.Context, *Stage) error {
	return func(ctx context.Context, s *Stage) error {
		return some(ctx, s, of(s.World), "clock", func(of []T) error { return setClocks(ctx, s, of, s.jump(far)) })
	}
}

// setClocks sets the clocks' offset to d, and later back to zero.
func setClocks[T clocked](ctx context.Context, s *Stage, of []T, d time.Duration) error {
	s.logf("%v by %v", ids(of), d)
	return during(ctx, of, s.For, func(p T) error { return p.SetClock(d) }, func(_ context.Context, p T) error { return p.SetClock(0) })
}

// near and far bound the offset of a clock.
//
// A lock that a node took while its clock was ahead lasts longer by the offset once the clock is right again, unless it
// is released (docs/lock.md, known limits). On a quorum of nodes that would block a resource. So only one node of a round
// has a large offset, none if there is only one, and each round has its own resources.
const (
	near = 3 * time.Second
	far  = 6 * time.Hour
)

var reaches = []time.Duration{2 * ms, 20 * ms, 200 * ms, 3 * sec, time.Minute, far}

// jump draws the offset of a clock: back or ahead, up to a limit that is drawn first.
func (s *Stage) jump(limit time.Duration) time.Duration {
	reach := min(reaches[s.Rand.IntN(len(reaches))], limit)
	return s.between(-reach, reach)
}

// redisClock gives some nodes a small clock offset, or the one node of the round a large one.
func redisClock(ctx context.Context, s *Stage) error {
	all := s.Nodes()
	if d := s.jump(far); d.Abs() > near && len(all) > 1 {
		n := s.Scene.Round % len(all)
		return with(ctx, s, all[n:n+1], "clock", 1, func(of []Node) error { return setClocks(ctx, s, of, d) })
	}
	return some(ctx, s, all, "clock", func(of []Node) error { return setClocks(ctx, s, of, s.jump(near)) })
}

func clientStop(ctx context.Context, s *Stage) error {
	return some(ctx, s, s.Clients(), "run", func(of []Client) error { return s.stopClients(ctx, of, s.For) })
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
	return some(ctx, s, s.Clients(), "run", func(of []Client) error {
		end := time.Now().Add(s.For)
		for time.Now().Before(end) && ctx.Err() == nil {
			if err := s.stopClients(ctx, of, s.between(20*ms, 700*ms)); err != nil {
				return err
			}
			wait(ctx, s.between(10*ms, 500*ms))
		}
		return nil
	})
}

func clientKill(ctx context.Context, s *Stage) error {
	return some(ctx, s, s.Clients(), "run", func(of []Client) error {
		from := history.Now()
		work := client.Order{Do: client.Work, Round: s.Scene.Round, Resources: s.Scene.Resources}
		return during(ctx, of, s.For, Client.Kill, func(ctx context.Context, c Client) error {
			defer s.stopped(c.Number(), from)
			return c.Restart(ctx, work)
		})
	})
}

// gatewayKill kills once or several times, so that a gateway may die during its start.
func gatewayKill(ctx context.Context, s *Stage) error {
	return some(ctx, s, s.Gateways(), "run", func(of []Gateway) error {
		end := time.Now().Add(s.For)
		for {
			err := each(of, ErrNotDone, Gateway.Kill)
			if err != nil || !wait(ctx, s.between(200*ms, 2*sec)) || time.Now().After(end) {
				return err
			}
		}
	})
}

// gatewayStop returns when the gateways have ended; the supervisor restarts them.
func gatewayStop(ctx context.Context, s *Stage) error {
	return some(ctx, s, s.Gateways(), "run", func(of []Gateway) error {
		after, cancel := healing(ctx) // a requested stop is completed in any case
		defer cancel()
		late := map[string]time.Duration{}
		for _, g := range of {
			late[g.ID()] = s.between(0, s.For)
		}
		return each(of, ErrNotDone, func(g Gateway) error {
			if !wait(ctx, late[g.ID()]) {
				return nil
			}
			return g.Stop(after)
		})
	})
}

func redisLoss(data cluster.Data) func(context.Context, *Stage) error {
	return func(ctx context.Context, s *Stage) error {
		return some(ctx, s, s.Nodes(), "run", func(of []Node) error {
			var err error
			if data == cluster.Older && s.odds(2) { // otherwise the copy is from the round's beginning
				err = each(of, ErrNotDone, Node.Keep)
				wait(ctx, s.between(0, s.For))
			}
			err = errors.Join(err, each(of, ErrNotDone, Node.Kill))
			wait(ctx, s.between(0, s.For))
			after, cancel := healing(ctx)
			defer cancel()
			if data != cluster.Own {
				failed := each(of, ErrNotDone, func(n Node) error { return n.Restart(after, data) })
				if err = errors.Join(err, failed); failed == nil {
					return err
				}
			}
			// Otherwise with its own data, so that none stays down.
			return errors.Join(err, each(of, ErrNotHealed, func(n Node) error { return n.Restart(after, cluster.Own) }))
		})
	}
}

// redisFlush flushes one node after the other, within its time or without a pause.
func redisFlush(ctx context.Context, s *Stage) error {
	return some(ctx, s, s.Nodes(), "run", func(of []Node) (err error) { // a stopped node does not answer
		part := []cluster.Part{cluster.Everything, cluster.Hash, cluster.Scripts}[s.Rand.IntN(3)]
		apart := time.Duration(0)
		if s.odds(2) {
			apart = s.For / time.Duration(len(of))
		}
		s.logf("%s, %v apart", part, apart)
		after, cancel := healing(ctx)
		defer cancel()
		for i := range of {
			err = errors.Join(err, each(of[i:i+1], ErrNotDone, func(n Node) error { return n.Flush(after, part) }))
			if !wait(ctx, apart) {
				break
			}
		}
		return err
	})
}

func blobsKill(ctx context.Context, s *Stage) error {
	return some(ctx, s, s.Blobs(), "run", func(of []Server) error {
		return during(ctx, of, s.For, Server.Kill, func(ctx context.Context, b Server) error { return b.Start(ctx) })
	})
}

func diskFull(ctx context.Context, s *Stage) error {
	return some(ctx, s, s.Disks(), "room", func(of []Disk) error {
		leave := []int64{0, 0, 4 << 10, 128 << 10, 1 << 20}[s.Rand.IntN(5)]
		s.logf("%d bytes stay free", leave)
		return during(ctx, of, s.For, func(d Disk) error { return d.Fill(ctx, leave) }, func(_ context.Context, d Disk) error { return d.Free() })
	})
}

// everyProcess is the client of a span that slows the whole machine.
const everyProcess = -1

func busy(ctx context.Context, s *Stage) error {
	n := runtime.NumCPU() * (1 + s.Rand.IntN(4))
	s.logf("%d processes", n)
	defer s.stopped(everyProcess, history.Now())
	if err := s.Spin(ctx, n, s.For); err != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", ErrNotDone, err)
	}
	return nil
}

func rollingGateways(ctx context.Context, s *Stage) error {
	all := s.Gateways()
	return with(ctx, s, all, "run", len(all), func(of []Gateway) error {
		return rolling(ctx, s, of, ErrNotDone, func(ctx context.Context, g Gateway) error { return g.Stop(ctx) }, Gateway.Ready)
	})
}

func rollingRedis(ctx context.Context, s *Stage) error {
	all := s.Nodes()
	return with(ctx, s, all, "run", len(all), func(of []Node) error {
		return rolling(ctx, s, of, ErrNotHealed, func(ctx context.Context, n Node) error { return n.Restart(ctx, cluster.Own) }, Node.Admitted)
	})
}

// rolling is an operator's action that restarts the next part only when the previous one is back. If its context ends it
// stops, with the current part back in place.
func rolling[T part](
	ctx context.Context, s *Stage, of []T, sort error, restart func(context.Context, T) error, back func(T, context.Context) error,
) error {
	for _, p := range of {
		if ctx.Err() != nil {
			return nil
		}
		after, cancel := healing(ctx)
		err := each([]T{p}, sort, func(p T) error { return restart(after, p) })
		cancel()
		if err != nil {
			return err
		}
		limit, cancel := context.WithTimeout(ctx, patience)
		from := time.Now()
		err = until(limit, func(ctx context.Context) error { return back(p, ctx) })
		cancel()
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%w: %s within %v: %w", ErrNotHealed, p.ID(), patience, err)
		}
		s.logf("%s is back after %v", p.ID(), time.Since(from).Round(ms))
	}
	return nil
}
