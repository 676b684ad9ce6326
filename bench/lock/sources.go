package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
)

// sources compares leases over each source with each other, and with the servers' own locks.
func sources(ctx context.Context, s settings, servers []*redisserver.Server, b *board) (err error) {
	if s.nodes != 0 && s.nodes != members {
		return nil
	}
	sv, err := startServices(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = sv.close() }()
	servers = servers[:members]
	holders, done, err := sv.contendSources(ctx, servers)
	if err != nil {
		return err
	}
	defer done()
	waiters, doneToo, err := sv.contendSources(ctx, servers)
	if err != nil {
		return err
	}
	defer doneToo()
	keep := func(c contender) bool { return !listed(s.contenders, c.name) }
	holders, waiters = slices.DeleteFunc(holders, keep), slices.DeleteFunc(waiters, keep)
	if err := sourceRates(ctx, s, holders, b); err != nil {
		return err
	}
	if err := sourceHandOffs(ctx, holders, waiters); err != nil {
		return err
	}
	return sv.sourcesFrozen(ctx, servers, holders, b)
}

func sourceRates(ctx context.Context, s settings, contenders []contender, b *board) error {
	fmt.Printf("\n%-5s %-8s %-22s %10s %10s %10s %8s   over each source, with the fence\n", "nodes", "callers", "contender", "cycles/s", "p50", "p99", "allocs")
	for _, callers := range []int{1, 16, 128} {
		if s.callers != 0 && s.callers != callers {
			continue
		}
		results := measure(ctx, contenders, callers, s.slice, s.rounds)
		for _, c := range contenders {
			r := results[c.name]
			r.print(cell{members, callers}, c.name)
			for why, times := range r.failed {
				b.failure(c.name, fmt.Sprintf("%d callers: %s", callers, why), times)
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		for _, g := range []struct {
			name, ours, peer string
			want             float64
		}{
			{"postgres", "fencegate-postgres", "arm+end", 0.8},
			{"etcd", "fencegate-etcd-arm", "etcd-mutex-arm", 0.95},
		} {
			if ours, peer := results[g.ours], results[g.peer]; ours != nil && peer != nil {
				b.goal(fmt.Sprintf("lock.sources.%s.c%d", g.name, callers), fmt.Sprintf("%.0f/s", ours.rate()),
					fmt.Sprintf("%s:%.0f/s", g.peer, peer.rate()), ours.rate()/peer.rate(), g.want, false)
			}
		}
	}
	return nil
}

func sourceHandOffs(ctx context.Context, holders, waiters []contender) error {
	fmt.Printf("\n%-22s %10s %10s   from a release to the next one's lease, in another process\n", "contender", "p50", "p99")
	for i, c := range holders {
		if c.wait == nil {
			continue
		}
		times, err := handOff(ctx, c, waiters[i])
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		fmt.Printf("%-22s %10v %10v\n", c.name, quantile(times, 0.5).Round(time.Microsecond), quantile(times, 0.99).Round(time.Microsecond))
	}
	return nil
}

// server is a server that can be frozen.
type server interface {
	Freeze() error
	Thaw() error
}

// sourcesFrozen freezes each server of three in turn, and so also the leader.
func (s *services) sourcesFrozen(ctx context.Context, redis []*redisserver.Server, contenders []contender, b *board) error {
	groups := map[string][]server{}
	for i := range members {
		groups["fencegate-redis"] = append(groups["fencegate-redis"], redis[i])
		for _, name := range []string{"fencegate-etcd", "etcd-mutex-arm"} {
			groups[name] = append(groups[name], s.etcd.Members[i])
		}
		groups["fencegate-zookeeper"] = append(groups["fencegate-zookeeper"], s.zk.Servers[i])
	}
	fmt.Printf("\n%-22s %8s %10s %10s %8s   one server of three frozen, each in turn: an acquisition and its release\n", "contender", "cycles", "p50", "max", "failed")
	for _, c := range contenders {
		var times []time.Duration
		failed := 0
		for _, one := range groups[c.name] {
			if err := one.Freeze(); err != nil {
				return err
			}
			some, bad := c.cycles(ctx, 100, 4*time.Second)
			if err := one.Thaw(); err != nil {
				return err
			}
			times, failed = append(times, some...), failed+bad
			c.settle(ctx)
		}
		if len(times) > 0 {
			fmt.Printf("%-22s %8d %10v %10v %8d\n", c.name, len(times), quantile(times, 0.5).Round(time.Microsecond), quantile(times, 1).Round(time.Microsecond), failed)
			b.fails(c.name, "one server of three frozen", failed)
		}
	}
	return nil
}

// patience is when a cycle counts as failed. etcd's mutex waits for a frozen server until its context ends.
func (c contender) patience() time.Duration {
	if strings.HasPrefix(c.name, "fencegate") {
		return time.Minute
	}
	return 10 * time.Second
}

// cycles does at most n cycles, and starts none after the time is over.
func (c contender) cycles(ctx context.Context, n int, within time.Duration) (times []time.Duration, failed int) {
	for begun := time.Now(); len(times) < n && time.Since(begun) < within && ctx.Err() == nil; {
		start := time.Now()
		if c.bounded(ctx, fmt.Sprintf("frozen/%d", len(times)%7)) != nil {
			failed++
		}
		times = append(times, time.Since(start))
	}
	return times, failed
}

func (c contender) bounded(ctx context.Context, resource string) error {
	ctx, cancel := context.WithTimeout(ctx, c.patience())
	defer cancel()
	return c.cycle(ctx, resource)
}

// settle waits until a thawed server takes part again, as far as a client can tell: after 20 cycles in a row.
func (c contender) settle(ctx context.Context) {
	for done, until := 0, time.Now().Add(10*time.Second); done < 20 && time.Now().Before(until) && ctx.Err() == nil; done++ {
		if c.bounded(ctx, "settle") != nil {
			done = -1
		}
	}
}
