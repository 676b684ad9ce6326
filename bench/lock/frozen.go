package main

import (
	"context"
	"fmt"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
)

// frozen freezes one node of five and measures the longest operation.
func frozen(ctx context.Context, s settings, servers []*redisserver.Server, b *board) error {
	if s.nodes != 0 && s.nodes != 5 {
		return nil
	}
	contenders, done, err := contend(ctx, servers)
	if err != nil {
		return err
	}
	defer done()
	for _, c := range contenders { // the connections stay open
		if err := c.cycle(ctx, "frozen"); err != nil {
			return err
		}
	}
	if err := servers[2].Freeze(); err != nil {
		return err
	}
	defer func() { _ = servers[2].Thaw() }()
	fmt.Printf("\n%-22s %8s %10s %10s   one node of five frozen: an acquisition and its release\n", "contender", "cycles", "p50", "max")
	for _, c := range contenders {
		if c.wait == nil || !listed(s.contenders, c.name) {
			continue
		}
		var times []time.Duration
		failed := 0
		for begun := time.Now(); len(times) < 300 && time.Since(begun) < 8*time.Second; {
			start := time.Now()
			if c.cycle(ctx, fmt.Sprintf("frozen/%d", len(times)%7)) != nil {
				failed++
			}
			times = append(times, time.Since(start))
		}
		longest := quantile(times, 1)
		fmt.Printf("%-22s %8d %10v %10v", c.name, len(times), quantile(times, 0.5).Round(time.Microsecond), longest.Round(time.Microsecond))
		if failed > 0 {
			fmt.Printf("  %d failed", failed)
		}
		fmt.Println()
		b.fails(c.name, "one node of five frozen", failed)
		if c.name == "fencegate" {
			b.goal("lock.frozen.max.n5", longest.Round(time.Microsecond).String(), "want:60ms", longest.Seconds()/0.06, 1, true)
		}
	}
	return nil
}
