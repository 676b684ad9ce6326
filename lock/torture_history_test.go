package lock_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// verify counts duplicate tokens, and acquisitions that began after another one with a higher or equal token had
// completed.
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

// span is how long a holder considered a lease its own.
type span struct{ from, to time.Duration }

// overlaps counts the spans that begin before an earlier one ends, and returns the longest overlap.
func overlaps(spans []span) (count int, longest time.Duration) {
	spans = slices.Clone(spans)
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	var end time.Duration // of all earlier ones
	for _, s := range spans {
		if s.to <= s.from {
			continue // over before its holder knew of it
		}
		if both := min(end, s.to) - s.from; both > 0 {
			count++
			longest = max(longest, both)
		}
		end = max(end, s.to)
	}
	return count, longest
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

func TestOverlapsAreSeen(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spans   []span
		count   int
		longest time.Duration
	}{
		"one after the other":     {[]span{{0, 10}, {10, 20}, {25, 30}}, 0, 0},
		"side by side":            {[]span{{5, 20}, {0, 10}}, 1, 5},
		"one in the other":        {[]span{{0, 30}, {10, 20}, {21, 25}}, 2, 10},
		"over before it was used": {[]span{{0, 30}, {20, 10}}, 0, 0},
	} {
		if count, longest := overlaps(c.spans); count != c.count || longest != c.longest {
			t.Errorf("%s: %d, at most %d", name, count, longest)
		}
	}
}
