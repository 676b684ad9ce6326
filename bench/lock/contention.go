package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
	"github.com/fencegate/fencegate/lock"
)

// The number of callers that want one resource, and how long each holds it.
const (
	crowdSize = 100
	crowdHold = 5 * time.Millisecond
	crowdTime = 4 * time.Second
)

// crowds measures how fast one resource changes hands, and the longest wait.
func crowds(ctx context.Context, s settings, servers []*redisserver.Server, b *board) error {
	fmt.Printf("\n%d want one resource, %v each: at most %v/s\n", crowdSize, crowdHold, int(time.Second/crowdHold))
	fmt.Printf("%-5s %-22s %10s %10s %10s %14s\n", "nodes", "contender", "grants/s", "p50 wait", "max wait", "never got it")
	for _, n := range []int{1, 5} {
		if s.nodes != 0 && s.nodes != n {
			continue
		}
		contenders, done, err := contend(ctx, servers[:n])
		if err != nil {
			return err
		}
		var lockers []*lock.Locker
		for range crowdSize {
			l, err := ours(ctx, servers[:n])
			if err != nil {
				return err
			}
			lockers = append(lockers, l)
			if err := fencegate("", l).cycle(ctx, "warm"); err != nil { // connects
				return err
			}
		}
		for _, c := range slices.Insert(contenders, 1, apart(lockers)) {
			if c.wait != nil && listed(s.contenders, c.name) {
				b.fails(c.name, fmt.Sprintf("a crowd on %d nodes", n), c.crowd(ctx, n))
			}
		}
		for _, l := range lockers {
			_ = l.Close()
		}
		done()
	}
	return nil
}

func (c contender) crowd(ctx context.Context, nodes int) (failed int) {
	ctx, cancel := context.WithTimeout(ctx, crowdTime)
	defer cancel()
	var mu sync.Mutex
	var waits []time.Duration
	var longest time.Duration
	never := 0
	var all sync.WaitGroup
	for range crowdSize {
		all.Go(func() {
			got := 0
			for ctx.Err() == nil {
				begun := time.Now()
				release, err := c.wait(ctx, "crowd/"+c.name)
				waited := time.Since(begun)
				mu.Lock()
				longest = max(longest, waited) // a wait that fails counts too
				switch {
				case err == nil:
					got++
					waits = append(waits, waited)
				case ctx.Err() == nil:
					failed++
				case got == 0:
					never++
				}
				mu.Unlock()
				if err != nil {
					continue
				}
				time.Sleep(crowdHold)
				if err := release(context.WithoutCancel(ctx)); err != nil {
					mu.Lock()
					failed++
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	fmt.Printf("%-5d %-22s %10.0f %10v %10v %14d", nodes, c.name, float64(len(waits))/crowdTime.Seconds(),
		quantile(waits, 0.5).Round(time.Millisecond), longest.Round(time.Millisecond), never)
	if failed > 0 {
		fmt.Printf("  %d failed", failed)
	}
	fmt.Println()
	return failed
}

// handOffs measures from one process's release to a waiter's
// acquisition. The waiter has its own client, like another process.
func handOffs(ctx context.Context, s settings, servers []*redisserver.Server, b *board) error {
	fmt.Printf("\n%-5s %-22s %10s %10s   from a release to the next one's lease\n", "nodes", "contender", "p50", "p99")
	for _, n := range []int{1, 5} {
		if s.nodes != 0 && s.nodes != n {
			continue
		}
		holders, done, err := contend(ctx, servers[:n])
		if err != nil {
			return err
		}
		waiters, doneToo, err := contend(ctx, servers[:n])
		if err != nil {
			return err
		}
		for i, c := range holders {
			if c.wait == nil || !listed(s.contenders, c.name) {
				continue
			}
			times, err := handOff(ctx, c, waiters[i])
			switch {
			case err != nil && c.name == "fencegate":
				return fmt.Errorf("%s: %w", c.name, err)
			case err != nil: // rueidislock sometimes waits for ever
				fmt.Printf("%-5d %-22s failed: %v\n", n, c.name, err)
				continue
			}
			p50 := quantile(times, 0.5)
			fmt.Printf("%-5d %-22s %10v %10v\n", n, c.name, p50.Round(time.Microsecond), quantile(times, 0.99).Round(time.Microsecond))
			if c.name == "fencegate" {
				b.goal(fmt.Sprintf("lock.handoff.p50.n%d", n), p50.Round(time.Microsecond).String(), "want:800µs", p50.Seconds()/0.0008, 1, true)
			}
		}
		doneToo()
		done()
	}
	return nil
}

func handOff(ctx context.Context, holder, waiter contender) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	var times []time.Duration
	for len(times) < 60 && (len(times) < 10 || ctx.Err() == nil) {
		release, err := holder.wait(ctx, "hand-off/"+holder.name)
		if err != nil {
			return nil, err
		}
		type taken struct {
			at      time.Time
			release func(context.Context) error
			err     error
		}
		next := make(chan taken, 1)
		go func() {
			release, err := waiter.wait(ctx, "hand-off/"+holder.name)
			next <- taken{time.Now(), release, err}
		}()
		time.Sleep(20 * time.Millisecond) // enough for the waiter to be waiting
		begun := time.Now()
		if err := release(ctx); err != nil {
			return nil, err
		}
		got := <-next
		if got.err != nil {
			return nil, got.err
		}
		times = append(times, got.at.Sub(begun))
		if err := got.release(ctx); err != nil {
			return nil, err
		}
	}
	return times, nil
}
