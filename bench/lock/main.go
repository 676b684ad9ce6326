// Command lock measures fencegate's leases against redsync, redislock and rueidislock: in one process, on the same real
// Redis nodes, interleaved. It also compares the lease sources Redis, PostgreSQL, etcd and ZooKeeper with each other,
// with etcd's mutex and with PostgreSQL's locks.
//
// It prints one line for each goal. It exits with 1 if one of our leases was refused or could not be released, if any
// operation on the sources failed, and with -strict also if a goal is missed. The flags select parts; the whole takes
// about four minutes.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/internal/redisserver"
)

// settings holds the flags.
type settings struct {
	parts      string
	contenders string
	nodes      int
	callers    int
	slice      time.Duration
	rounds     int
}

func (s *settings) wants(part string) bool { return listed(s.parts, part) }

// listed reports whether a comma-separated list contains a name; an empty list contains all.
func listed(list, name string) bool {
	return list == "" || slices.Contains(strings.Split(list, ","), name)
}

func main() {
	var s settings
	flag.StringVar(&s.parts, "parts", "", "with commas: rate, crowd, handoff, waiters, frozen, sources; empty: all")
	flag.StringVar(&s.contenders, "contenders", "", "rate: those in this list, with commas; empty: all")
	flag.IntVar(&s.nodes, "nodes", 0, "groups of this size only; 0: all")
	flag.IntVar(&s.callers, "callers", 0, "rate, waiters: this many callers only; 0: all")
	flag.DurationVar(&s.slice, "slice", 400*time.Millisecond, "rate: how long one contender runs before the next one")
	flag.IntVar(&s.rounds, "rounds", 3, "rate: how often each contender has its slice")
	profile := flag.String("cpuprofile", "", "write a CPU profile to this file")
	strict := flag.Bool("strict", false, "exit with 1 when a goal is missed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	if *profile != "" {
		f, err := os.Create(*profile)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		exitOn(err)
	}
	var b board
	err := run(ctx, s, &b)
	stop()
	pprof.StopCPUProfile()
	exitOn(err)
	missed := b.print()
	for _, text := range b.failed {
		fmt.Fprintln(os.Stderr, "bench-lock:", text)
	}
	if len(b.failed) > 0 || missed > 0 && *strict {
		os.Exit(1)
	}
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-lock:", err)
		os.Exit(1)
	}
}

// run measures the parts, each on unused nodes.
func run(ctx context.Context, s settings, b *board) error {
	parts := []struct {
		name    string
		measure func(context.Context, settings, []*redisserver.Server, *board) error
	}{{"rate", rates}, {"crowd", crowds}, {"handoff", handOffs}, {"waiters", waiters}, {"frozen", frozen}, {"sources", sources}}
	for _, p := range parts {
		if !s.wants(p.name) {
			continue
		}
		if err := onNodes(ctx, 5, func(servers []*redisserver.Server) error { return p.measure(ctx, s, servers, b) }); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

func onNodes(ctx context.Context, n int, f func([]*redisserver.Server) error) error {
	var servers []*redisserver.Server
	defer func() {
		for _, s := range servers {
			_ = s.Close()
		}
	}()
	for range n {
		s, err := redisserver.Start(ctx, redisserver.Config{})
		if err != nil {
			return err
		}
		servers = append(servers, s)
	}
	return f(servers)
}
