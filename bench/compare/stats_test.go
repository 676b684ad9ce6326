package main

import "testing"

// pairs returns samples whose rates are the base's times the ratios.
func pairs(tree, again []float64) *result {
	r := &result{}
	for i := range tree {
		r.add([3]sample{{rate: 1000}, {rate: 1000 * tree[i]}, {rate: 1000 * again[i]}})
	}
	return r
}

func TestSlowerIsBeyondTheLimitAndTheNoise(t *testing.T) {
	t.Parallel()
	calm := []float64{1, 0.99, 1.01, 1, 0.99, 1.01, 1, 0.995, 1.005, 1}
	wild := []float64{1, 0.6, 1.4, 0.8, 1.25, 0.7, 1.3, 0.9, 1.1, 1}
	for name, c := range map[string]struct {
		tree, again []float64
		slower      bool
	}{
		"the same":                 {calm, calm, false},
		"4 % slower, calm":         {scaled(calm, 0.96), calm, false},
		"8 % slower, calm":         {scaled(calm, 0.92), calm, true},
		"8 % slower, in the noise": {scaled(calm, 0.92), wild, false},
		"half as fast, in noise":   {scaled(calm, 0.5), wild, true},
		"faster":                   {scaled(calm, 1.5), calm, false},
		"8 % slower, as the base":  {scaled(calm, 0.92), scaled(calm, 0.9), false},
	} {
		if v := pairs(c.tree, c.again).verdict(0.05, speeds[0].of); v.slower != c.slower {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

func scaled(values []float64, by float64) (out []float64) {
	for _, v := range values {
		out = append(out, v*by)
	}
	return out
}
