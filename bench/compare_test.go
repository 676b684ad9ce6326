package main

import "testing"

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
		v := judge(scaled(make([]float64, len(calm)), 0, 1000), scaled(c.tree, 1000), scaled(c.again, 1000))
		if slower := v.ratio < v.least(); slower != c.slower {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// scaled returns the values times a factor, plus something.
func scaled(values []float64, by float64, plus ...float64) (out []float64) {
	for _, v := range values {
		out = append(out, v*by)
		for _, p := range plus {
			out[len(out)-1] += p
		}
	}
	return out
}
