package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// sample is the result of one gateway in one slice.
type sample struct {
	rate float64       // operations a second
	cost time.Duration // processor time of the gateway, PostgreSQL and Redis per operation
}

// result holds the samples of one operation: of the base, the tree, and the base again.
type result struct {
	name    string
	samples [][3]sample
}

func (r *result) add(got [3]sample) { r.samples = append(r.samples, got) }

// speeds are the compared figures, each higher for a faster gateway: the rate, and the processor time, for when other
// work disturbs the rate.
var speeds = []struct {
	name string
	of   func(sample) float64
}{
	{"rate", func(s sample) float64 { return s.rate }},
	{"processor time", func(s sample) float64 { return 1 / max(s.cost.Seconds(), 1e-9) }},
}

// verdict is the result for one speed.
type verdict struct {
	ratio, same, noise float64
	slower             bool
}

// verdict compares the median ratio of tree and base with the noise: the median difference of the base's two gateways,
// plus two standard errors of that median. Ratios are taken within a pair. They are handled as logarithms, so that
// twice as fast and half as fast are equally far from 0.
func (r *result) verdict(limit float64, speed func(sample) float64) verdict {
	var trees, bases, apart []float64
	for _, s := range r.samples {
		trees = append(trees, math.Log(speed(s[1])/speed(s[0])))
		bases = append(bases, math.Log(speed(s[2])/speed(s[0])))
	}
	ratio, same := median(trees), median(bases)
	for _, x := range bases {
		apart = append(apart, math.Abs(x-same))
	}
	const normal = 1.4826 * 1.2533 // from the median deviation to the standard error of a median
	noise := math.Abs(same) + 2*normal*median(apart)/math.Sqrt(float64(len(bases)))
	v := verdict{ratio: math.Exp(ratio), same: math.Exp(same), noise: 1 - math.Exp(-noise)}
	v.slower = v.ratio < 1-max(v.noise, limit)
	return v
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n == 0 {
		return math.NaN()
	}
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

const tableHead = "| operation | rate, base | tree | tree/base | base/base | noise | µs of processor, base | tree | base/tree | base/base | noise | |\n" +
	"|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|"

// row is the result's line of the table.
func (r *result) row(limit float64) (text string, slower bool) {
	cells := []string{r.name}
	var how []string
	for i, speed := range speeds {
		v := r.verdict(limit, speed.of)
		if v.slower {
			how = append(how, speed.name)
		}
		for side := range 2 {
			var of []float64
			for _, s := range r.samples {
				of = append(of, []float64{s[side].rate, float64(s[side].cost.Microseconds())}[i])
			}
			cells = append(cells, fmt.Sprintf("%.0f", median(of)))
		}
		cells = append(cells, fmt.Sprintf("%.3f", v.ratio), fmt.Sprintf("%.3f", v.same), fmt.Sprintf("%.1f %%", 100*v.noise))
	}
	verdict := "as before"
	if len(how) > 0 {
		verdict = "**slower**: " + strings.Join(how, ", ")
	}
	return "| " + strings.Join(append(cells, verdict), " | ") + " |", len(how) > 0
}
