package judge

import (
	"cmp"
	"maps"
	"slices"
)

// kinds is the order of a report: damage to data first, what is safe last.
var kinds = []Kind{
	LostWrite, RefusedButDone, FailedButDone, DoneTwice, FromNowhere, Stale, LostUpdate, OrderBroken, StaleRead,
	PhantomRead, WrongBytes, Torn, Unreadable, TokenTwice, TokenFalls, Revoked, NotLinearizable, Overlap, Broken,
	Late, NotFree, NotRecovered, Leak,
}

// report returns each new finding once, ordered by kind and then by time.
func (j *Judge) report(found []Finding) Report {
	report := Report{Start: j.start, Outages: j.outages, Counts: j.total()}
	for _, f := range found {
		key := string(f.Kind) + "\x00" + f.Where + "\x00"
		if len(f.Ops) > 0 {
			key += f.Ops[0].ID
		} else if f.Kind != Leak && f.Kind != NotLinearizable {
			key += f.Text
		}
		if j.reported[key] {
			continue
		}
		j.reported[key] = true
		report.Findings = append(report.Findings, f)
	}
	slices.SortStableFunc(report.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(slices.Index(kinds, a.Kind), slices.Index(kinds, b.Kind)),
			cmp.Compare(a.begin(), b.begin()), cmp.Compare(a.Where, b.Where))
	})
	return report
}

func (f Finding) begin() int64 {
	if len(f.Ops) == 0 {
		return 0
	}
	return f.Ops[0].Begin
}

// total sums the counts of all resources.
func (j *Judge) total() Counts {
	counts := j.counts
	counts.Ops, counts.Refusals = nonzero(counts.Ops), nonzero(counts.Refusals)
	counts.Excused = map[string]int{}
	counts.Slow = map[Kind]int{}
	for _, kind := range j.slow {
		counts.Slow[kind]++
	}
	for _, g := range j.groups {
		counts.Overlaps += g.facts.overlaps
		counts.Longest = max(counts.Longest, g.facts.longest)
		counts.OverBudget += g.facts.overBudget
		for what, n := range g.facts.excused {
			counts.Excused[what] += n
		}
	}
	return counts
}

func nonzero(counts map[string]int) map[string]int {
	counts = maps.Clone(counts)
	maps.DeleteFunc(counts, func(_ string, n int) bool { return n == 0 })
	return counts
}
