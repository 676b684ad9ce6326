package run

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/robustness/judge"
)

// Summary is the run's result as text, also for README.md.
func (r Result) Summary() string {
	o := r.Options
	var b strings.Builder
	verdict := "nothing found"
	if found := (&FoundError{r.Findings}); len(r.Findings) > 0 && found.Safe() {
		verdict = "nothing unsafe; " + strings.Join(r.Kinds(), ", ")
	} else if len(r.Findings) > 0 {
		verdict = fmt.Sprintf("%d findings: %s", len(r.Findings), strings.Join(r.Kinds(), ", "))
	}
	fmt.Fprintf(&b, "\nseed %d, %s: %s\n", o.Seed, o.mode(), verdict)
	fmt.Fprintf(&b, "%d rounds in %v, %v of them under faults; %s\n", r.Rounds, r.Lasted.Round(time.Second), r.Work.Round(time.Second), total(r.Counts))
	fmt.Fprintf(&b, "refusals:    %s\n", numbers(r.Counts.Refusals))
	fmt.Fprintf(&b, "faults:      %s\n", numbers(r.Faults))
	fmt.Fprintf(&b, "not done:    %s; gateways started again %d times\n", numbers(r.Undone), r.Restarts)
	fmt.Fprintf(&b, "two believed at once: %d times, for %v at the most\n", r.Counts.Overlaps, r.Counts.Longest.Round(time.Millisecond))
	fmt.Fprintf(&b, "machine:     %s\n", r.machine())
	if o.Async {
		fmt.Fprintf(&b, "lost by failovers, and excused: %s\n", numbers(r.Counts.Excused))
	}
	if r.Counts.OverBudget > 0 {
		fmt.Fprintf(&b, "linearizations that were not found in time: %d calls\n", r.Counts.OverBudget)
	}
	for i, size := range r.Flat {
		if i == 0 {
			fmt.Fprintf(&b, "sizes, of each process of a gateway: first, last, greatest\n")
		}
		fmt.Fprintf(&b, "  %s\n", size)
	}
	fmt.Fprintf(&b, "calls:\n")
	for _, surface := range slices.Sorted(maps.Keys(bySurface(r.Counts.Ops))) {
		fmt.Fprintf(&b, "  %-14s %s\n", surface, numbers(bySurface(r.Counts.Ops)[surface]))
	}
	return b.String()
}

// machine is what the machine lost, and what that excuses.
func (r Result) machine() string {
	n := len(r.Machine)
	if n == 0 {
		return "not measured"
	}
	from, to := r.Machine[0].From, r.Machine[n-1].To
	var others float64
	for _, pace := range r.Machine {
		others += pace.Others / float64(n)
	}
	excused := map[string]int{}
	for kind, n := range r.Counts.Slow {
		excused[string(kind)] = n
	}
	return fmt.Sprintf("%.0f%% of its processors' time went to other programs; lost by that and by the disk: %v of %v; excused by it: %s",
		100*others, time.Duration(r.Machine.Lost(from, to)).Round(time.Second), time.Duration(to-from).Round(time.Second), numbers(excused))
}

// bySurface splits "surface action outcome"; probes and audits are merged.
func bySurface(ops map[string]int) map[string]map[string]int {
	split := map[string]map[string]int{}
	for name, n := range ops {
		surface, rest, _ := strings.Cut(name, " ")
		if surface == "probe" || surface == "audit" {
			_, rest, _ = strings.Cut(rest, " ")
		}
		if split[surface] == nil {
			split[surface] = map[string]int{}
		}
		split[surface][rest] += n
	}
	return split
}

// numbers formats counts, sorted by name.
func numbers(of map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		if of[name] > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", name, of[name]))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// total formats the total counts in one line.
func total(c judge.Counts) string {
	calls, refused := 0, 0
	for _, n := range c.Ops {
		calls += n
	}
	for _, n := range c.Refusals {
		refused += n
	}
	return fmt.Sprintf("%d calls, %d leases, %d effects, %d refusals so far", calls, c.Acquisitions, c.Effects, refused)
}
