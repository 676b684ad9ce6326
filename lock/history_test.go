package lock_test

import (
	"slices"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// verify counts tokens given twice, and acquisitions that began after another
// with a higher or equal token was complete.
func verify(entries []acquisition) (duplicates, inversions int) {
	seen := make(map[fence.Token]bool, len(entries))
	for _, e := range entries {
		if seen[e.token] {
			duplicates++
		}
		seen[e.token] = true
	}
	byBegun, byDone := slices.Clone(entries), slices.Clone(entries)
	slices.SortFunc(byBegun, func(a, b acquisition) int { return a.begun.Compare(b.begun) })
	slices.SortFunc(byDone, func(a, b acquisition) int { return a.done.Compare(b.done) })
	var highest fence.Token // among those complete before e began
	next := 0
	for _, e := range byBegun {
		for next < len(byDone) && byDone[next].done.Before(e.begun) {
			highest = max(highest, byDone[next].token)
			next++
		}
		if e.token < highest {
			inversions++
		}
	}
	return duplicates, inversions
}

func TestVerifySeesDuplicatesAndInversions(t *testing.T) {
	t.Parallel()
	at := func(ms int) time.Time { return time.UnixMilli(int64(ms)) }
	for name, c := range map[string]struct {
		entries                []acquisition
		duplicates, inversions int
	}{
		"fine":       {[]acquisition{{at(0), at(10), 1}, {at(11), at(20), 2}}, 0, 0},
		"overlapped": {[]acquisition{{at(0), at(10), 2}, {at(5), at(20), 1}}, 0, 0},
		"duplicate":  {[]acquisition{{at(0), at(10), 2}, {at(5), at(20), 2}}, 1, 0},
		"inversion":  {[]acquisition{{at(0), at(10), 2}, {at(11), at(20), 1}}, 0, 1},
	} {
		if d, i := verify(c.entries); d != c.duplicates || i != c.inversions {
			t.Errorf("%s: %d duplicates, %d inversions", name, d, i)
		}
	}
}
