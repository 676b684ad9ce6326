// Command fence measures the fence's cost in PostgreSQL, compared with no fence and with hand-written patterns: on one
// real server with fsync=on, interleaved in one run.
//
// The commits are measured as they are ("fast": the disk's own time) and with commit_delay set ("slow": the leader of a
// group commit sleeps before its fsync while it holds the lock, as with a slower disk).
//
// It prints one line for each goal. With -strict it exits with 1 if a goal is missed.
//
// With -base COMMIT it compares the server's processor time with that of the commit's SQL instead.
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
	commits []string
	only    []string // contenders; empty: all
	slice   time.Duration
	rounds  int
	delay   time.Duration
	data    string
	base    string
}

func main() {
	var p plan
	parts := flag.String("part", "insert,tx,copy,arm,notify", "what to measure")
	clients := flag.String("clients", "1,16,64", "numbers of clients; goals are held at 16")
	commits := flag.String("commit", "fast,slow", "which commits: as the disk is, with -delay, or both")
	only := flag.String("only", "", "contenders to measure beside unfenced; default: all")
	flag.DurationVar(&p.slice, "slice", 400*time.Millisecond, "how long one contender runs before the next one")
	flag.IntVar(&p.rounds, "rounds", 7, "how often each contender has its slice")
	flag.DurationVar(&p.delay, "delay", 1500*time.Microsecond, "what a slow commit takes longer")
	flag.StringVar(&p.data, "data", "", "folder below which the server's files are made; default: the system's temporary folder")
	flag.StringVar(&p.base, "base", "", "compare the server's processor time with that of this commit's SQL")
	strict := flag.Bool("strict", false, "exit with 1 when a goal is missed")
	flag.Parse()
	p.parts, p.commits = strings.Split(*parts, ","), strings.Split(*commits, ",")
	if *only != "" {
		p.only = strings.Split(*only, ",")
	}
	for c := range strings.SplitSeq(*clients, ",") {
		n, err := strconv.Atoi(c)
		if err != nil || n < 1 {
			fmt.Fprintln(os.Stderr, "bench-fence: -clients wants positive numbers")
			os.Exit(2)
		}
		p.clients = append(p.clients, n)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	run := p.run
	if p.base != "" {
		run = p.runAgainstBase
	}
	met, err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-fence:", err)
		os.Exit(1)
	}
	if !met && *strict {
		os.Exit(1)
	}
}

func (p plan) run(ctx context.Context) (met bool, err error) {
	w, err := start(ctx, p.data, slices.Max(p.clients))
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, w.close()) }()

	fmt.Printf("%-7s %-5s %-7s %-12s %10s %10s %10s   %s\n", "part", "commit", "clients", "contender", "ops/s", "p50", "p99", "of unfenced (range of rounds)")
	var goals []goal
	for _, part := range p.parts {
		measure, ok := map[string]func(context.Context, *world, cell) ([]goal, error){
			"insert": p.insertPart, "tx": p.txPart, "copy": p.copyPart, "arm": p.armPart, "notify": p.notifyPart,
		}[part]
		if !ok {
			return false, fmt.Errorf("there is no part %q", part)
		}
		for _, commit := range p.commits {
			if part == "copy" && commit == "slow" {
				continue // a COPY commits once per 100,000 rows
			}
			if err := w.setCommit(ctx, commit, p.delay); err != nil {
				return false, err
			}
			for _, n := range p.clients {
				got, err := measure(ctx, w, cell{part, commit, n})
				if err != nil {
					return false, fmt.Errorf("%s, %s commits, %d clients: %w", part, commit, n, err)
				}
				goals = append(goals, got...)
			}
		}
	}
	met = true
	for _, g := range goals {
		fmt.Println(g)
		met = met && g.met()
	}
	return met, nil
}
