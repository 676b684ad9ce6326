// Command compare checks whether this tree is slower than an older commit.
//
// It builds fencegate at both and runs three gateways, each on its own PostgreSQL and Redis: the tree, the commit, and
// the commit again. They take turns, operation by operation, in alternating order. The difference between the commit's
// two gateways is the noise. It prints a table, and exits with 1 if the tree is slower than the commit by more than the
// noise and by more than 5 %, or if an operation fails. Slower means fewer operations a second, or more processor time
// of gateway, PostgreSQL and Redis for each.
//
// PostgreSQL runs without durability here: the disk would hide the programs' cost.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"

	"github.com/fencegate/fencegate/bench/internal/commit"
	"github.com/fencegate/fencegate/internal/child"
)

// plan holds the flags.
type plan struct {
	base    string
	pairs   int
	slice   time.Duration
	clients int
	only    string
	limit   float64
}

func main() {
	var p plan
	flag.StringVar(&p.base, "base", "", "commit that the tree is compared with (required)")
	flag.IntVar(&p.pairs, "pairs", 12, "how often each gateway has its slice of each operation")
	flag.DurationVar(&p.slice, "slice", time.Second, "how long a slice is")
	flag.IntVar(&p.clients, "clients", 4, "connections of the clients")
	flag.StringVar(&p.only, "only", "", "measure the operations whose names have this in them")
	flag.Float64Var(&p.limit, "limit", 0.05, "how much slower the tree may be even where the noise is smaller")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	slower, err := p.run(ctx)
	stop()
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench-compare:", err)
		os.Exit(1)
	case slower > 0:
		fmt.Fprintf(os.Stderr, "bench-compare: %d operations are slower than at %s\n", slower, p.base)
		os.Exit(1)
	}
}

func (p plan) run(ctx context.Context) (slower int, err error) {
	if p.base == "" {
		return 0, errors.New("-base is missing: the commit to compare with")
	}
	dir, err := os.MkdirTemp("", "fencegate-compare-")
	if err != nil {
		return 0, err
	}
	if err = errors.Join(child.RemoveAtDeath(dir), os.Chmod(dir, 0o711)); err != nil { // PostgreSQL's user must traverse it
		return 0, err
	}
	defer func() {
		err = errors.Join(err, os.RemoveAll(dir))
		child.Removed(dir)
	}()
	old, tree, err := commit.Build(ctx, dir, p.base)
	if err != nil {
		return 0, err
	}
	var sides []*side
	defer func() {
		for _, s := range sides {
			err = errors.Join(err, s.close())
		}
	}()
	for _, one := range []struct{ name, binary string }{{"base", old}, {"tree", tree}, {"base again", old}} {
		s, err := startSide(ctx, filepath.Join(dir, strings.ReplaceAll(one.name, " ", "-")), one.binary, p.clients)
		if s != nil {
			sides = append(sides, s)
		}
		if err != nil {
			return 0, fmt.Errorf("%s: %w%s", one.name, err, s.logTail())
		}
	}
	return p.measure(ctx, sides)
}

// orders are the orders in which the sides take their turns, pair by pair.
var orders = [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {2, 0, 1}, {1, 2, 0}, {0, 2, 1}}

func (p plan) measure(ctx context.Context, sides []*side) (slower int, err error) {
	var results []result
	for _, k := range kinds {
		if !strings.Contains(k.name, p.only) {
			continue
		}
		r := result{name: k.name}
		fmt.Fprintln(os.Stderr, "bench-compare:", k.name)
		for round := -1; round < p.pairs; round++ { // the first one warms up
			var got [3]sample
			for _, i := range orders[(round+1)%len(orders)] {
				if got[i], err = sides[i].slice(ctx, k, p.slice, p.clients); err != nil {
					return slower, fmt.Errorf("%s: %w%s", k.name, err, sides[i].logTail())
				}
			}
			if round >= 0 {
				r.add(got)
			}
		}
		results = append(results, r)
	}
	fmt.Printf("%d clients, %d pairs of %s; ratios below 1 are slower\n\n%s\n", p.clients, p.pairs, p.slice, tableHead)
	for _, r := range results {
		row, isSlower := r.row(p.limit)
		fmt.Println(row)
		if isSlower {
			slower++
		}
	}
	return slower, nil
}
