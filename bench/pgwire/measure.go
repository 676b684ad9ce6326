package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// cell is one combination of the parameters.
type cell struct {
	part, unit string
	clients    int
}

// goal is one line of the result.
type goal struct {
	name, ours, peer string
	ratio, want      float64
	atMost           bool
}

func (g goal) met() bool {
	if g.atMost {
		return g.ratio <= g.want
	}
	return g.ratio >= g.want
}

func (g goal) String() string {
	sign, answer := ">=", "no"
	if g.atMost {
		sign = "<="
	}
	if g.met() {
		answer = "yes"
	}
	return fmt.Sprintf("goal pgwire.%s ours=%s peer=%s ratio=%.3f want=%s%.2f met=%s", g.name, g.ours, g.peer, g.ratio, sign, g.want, answer)
}

// measure gives each contender its slice in turn and prints the results. Every round begins with another contender.
func (p plan) measure(ctx context.Context, w *world, in cell, run operation) ([]goal, error) {
	rates := make(map[string][]float64)
	for round := range p.rounds {
		for i := range w.contenders {
			one := w.contenders[(i+round)%len(w.contenders)]
			bounded, cancel := context.WithTimeout(ctx, p.slice+30*time.Second)
			rate, err := run(bounded, w, one, in.clients, p.slice)
			cancel()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", one.name, err)
			}
			rates[one.name] = append(rates[one.name], rate)
		}
	}
	for _, one := range w.contenders {
		all := ratios(rates[one.name], rates["direct"])
		fmt.Printf("%-8s %-7d %-10s %12s   %.3f (%.3f-%.3f)\n", in.part, in.clients, one.name, in.show(rates[one.name]), median(all), all[0], all[len(all)-1])
	}
	var goals []goal
	for peer, want := range map[string]float64{"iocopy": 0.97, "pgbouncer": 1} {
		if len(rates[peer]) == 0 || len(rates["ours"]) == 0 {
			continue
		}
		goals = append(goals, goal{
			name: fmt.Sprintf("%s.c%d.%s", in.part, in.clients, peer), ours: in.show(rates["ours"]), peer: in.show(rates[peer]),
			ratio: median(ratios(rates["ours"], rates[peer])), want: want,
		})
	}
	slices.SortFunc(goals, func(a, b goal) int { return len(a.name) - len(b.name) })
	return goals, nil
}

func (in cell) show(rates []float64) string {
	sorted := slices.Sorted(slices.Values(rates))
	return fmt.Sprintf("%.0f%s", median(sorted), in.unit)
}

// ratios are round by round, in ascending order: adjacent slices saw the machine in the same state.
func ratios(ours, peers []float64) []float64 {
	var all []float64
	for i := range ours {
		all = append(all, ours[i]/peers[i])
	}
	slices.Sort(all)
	return all
}

func median(sorted []float64) float64 {
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
