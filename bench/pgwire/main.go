// Command pgwire measures the relay of gateway/pgwire against no relay ("direct"),
// a relay that only copies ("io.Copy"), and PgBouncer in session mode: on one real
// PostgreSQL, with each relay in its own process, interleaved in one run.
//
// It prints one line for each goal. With -strict it exits with 1 if a goal is missed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"
)

// plan holds the flags.
type plan struct {
	parts   []string
	clients []int
	only    []string // contenders; empty: all
	slice   time.Duration
	rounds  int
	idle    int
}

func main() {
	var p plan
	relay := relayFlags{}
	relay.register()
	parts := flag.String("part", "select,tpcb,rows,copyout,copyin,allocs,cpu,idle,memory", "what to measure")
	clients := flag.String("clients", "1,16,64", "numbers of clients")
	only := flag.String("only", "", "contenders to measure beside direct; default: all")
	flag.DurationVar(&p.slice, "slice", time.Second, "how long one contender runs before the next one; pgbench wants whole seconds")
	flag.IntVar(&p.rounds, "rounds", 3, "how often each contender has its slice")
	flag.IntVar(&p.idle, "idle", 5000, "how many idle sessions are held")
	strict := flag.Bool("strict", false, "exit with 1 when a goal is missed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	if relay.kind != "" {
		err := relay.run(ctx)
		stop()
		exitOn(err)
		return
	}
	p.parts = strings.Split(*parts, ",")
	if *only != "" {
		p.only = strings.Split(*only, ",")
	}
	for c := range strings.SplitSeq(*clients, ",") {
		n, err := strconv.Atoi(c)
		if err != nil || n < 1 {
			exitOn(errors.New("-clients wants positive numbers"))
		}
		p.clients = append(p.clients, n)
	}
	met, err := p.run(ctx)
	stop()
	exitOn(err)
	if !met && *strict {
		os.Exit(1)
	}
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-pgwire:", err)
		os.Exit(1)
	}
}

func (p plan) run(ctx context.Context) (met bool, err error) {
	var goals []goal
	if loads := slices.DeleteFunc(slices.Clone(p.parts), func(part string) bool { return part == "idle" || part == "allocs" || part == "cpu" || part == "memory" }); len(loads) > 0 {
		if goals, err = p.loads(ctx, loads); err != nil {
			return false, err
		}
	}
	for part, measure := range map[string]func(context.Context) ([]goal, error){"allocs": p.allocsPart, "cpu": p.cpuPart, "idle": p.idlePart, "memory": p.memoryPart} {
		if !slices.Contains(p.parts, part) {
			continue
		}
		more, err := measure(ctx)
		if err != nil {
			return false, fmt.Errorf("%s: %w", part, err)
		}
		goals = append(goals, more...)
	}
	met = true
	for _, g := range goals {
		fmt.Println(g)
		met = met && g.met()
	}
	return met, nil
}

// loads measures the parts that need PostgreSQL and all contenders.
func (p plan) loads(ctx context.Context, parts []string) (goals []goal, err error) {
	scale := 1
	if slices.Contains(parts, "tpcb") {
		scale = slices.Max(p.clients)
	}
	w, err := start(ctx, slices.Max(p.clients), scale, p.only)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	fmt.Printf("%-8s %-7s %-10s %12s   %s\n", "part", "clients", "contender", "rate", "of direct (range of rounds)")
	for _, part := range parts {
		op, ok := operations[part]
		if !ok {
			return nil, fmt.Errorf("there is no part %q", part)
		}
		for _, n := range p.clients {
			got, err := p.measure(ctx, w, cell{part, op.unit, n}, op.run)
			if err != nil {
				return nil, fmt.Errorf("%s, %d clients: %w", part, n, err)
			}
			goals = append(goals, got...)
		}
	}
	return goals, nil
}
