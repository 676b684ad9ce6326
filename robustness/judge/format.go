package judge

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/fencegate/fencegate/robustness/history"
)

// perKind is how many findings of a kind are reported in full.
const perKind = 10

// Format writes the report as text: the verdict, the findings with their calls ordered by time, and the counts. Times
// are seconds since the beginning of the run.
func Format(w io.Writer, r Report) error {
	var b strings.Builder
	verdict(&b, r)
	for _, kind := range kinds {
		var of []Finding
		for _, f := range r.Findings {
			if f.Kind == kind {
				of = append(of, f)
			}
		}
		for i, f := range of {
			if i == perKind {
				fmt.Fprintf(&b, "\n%s: %d more\n", kind, len(of)-i)
				break
			}
			r.finding(&b, f)
		}
	}
	r.counts(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

func verdict(b *strings.Builder, r Report) {
	if len(r.Findings) == 0 {
		b.WriteString("Nothing found.\n")
		return
	}
	n := map[Kind]int{}
	for _, f := range r.Findings {
		n[f.Kind]++
	}
	var parts []string
	for _, kind := range kinds {
		if n[kind] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[kind], kind))
		}
	}
	fmt.Fprintf(b, "%d findings: %s.\n", len(r.Findings), strings.Join(parts, ", "))
}

func (r Report) finding(b *strings.Builder, f Finding) {
	fmt.Fprintf(b, "\n%s %s: %s.\n", strings.ToUpper(string(f.Kind)), f.Where, f.Text)
	ops := slices.Clone(f.Ops)
	slices.SortStableFunc(ops, func(x, y history.Op) int { return cmp.Compare(x.Begin, y.Begin) })
	for _, op := range ops {
		fmt.Fprintf(b, "  %s\n", r.line(op))
	}
	if len(ops) == 0 {
		return
	}
	from, to := ops[0].Begin, max(ops[len(ops)-1].Begin, ops[len(ops)-1].End)
	for _, s := range r.Outages {
		if s.From <= to && s.To >= from {
			fmt.Fprintf(b, "  during %s, %s to %s\n", s.What, seconds(s.From-r.Start), seconds(s.To-r.Start))
		}
	}
}

// line formats one call.
func (r Report) line(op history.Op) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s ", seconds(op.Begin-r.Start))
	if op.End != 0 {
		fmt.Fprintf(&b, "+%s ", seconds(op.End-op.Begin))
	}
	fmt.Fprintf(&b, "%s client %d %s: %s %s", op.ID, op.Client, op.Surface, op.Action, cmp.Or(op.Register, op.Resource))
	if op.Token != 0 {
		fmt.Fprintf(&b, " token %d", op.Token)
	}
	for _, name := range slices.Sorted(maps.Keys(op.Based)) {
		fmt.Fprintf(&b, ", %s from %s", name, orNothing(op.Based[name]))
	}
	if op.Action == history.Read {
		fmt.Fprintf(&b, " saw %s", orNothing(op.Saw))
	}
	fmt.Fprintf(&b, ": %s", op.Outcome)
	for _, more := range []string{op.Code, op.Error, op.Wrong} {
		if more != "" {
			b.WriteString(", " + more)
		}
	}
	return b.String()
}

func (r Report) counts(b *strings.Builder) {
	c := r.Counts
	total := 0
	for _, n := range c.Ops {
		total += n
	}
	fmt.Fprintf(b, "\n%d calls, %d effects, %d leases.\n", total, c.Effects, c.Acquisitions)
	fmt.Fprintf(b, "Leases that overlapped in belief: %d, at most %.3f ms.\n",
		c.Overlaps, float64(c.Longest.Nanoseconds())/1e6)
	fmt.Fprintf(b, "Calls on registers whose linearization was not found in time: %d.\n", c.OverBudget)
	table(b, "Excused by what an asynchronous failover lost", c.Excused)
	table(b, "Refusals", c.Refusals)
	table(b, "Calls", c.Ops)
}

func table(b *strings.Builder, title string, counts map[string]int) {
	if len(counts) == 0 {
		return
	}
	fmt.Fprintf(b, "%s:\n", title)
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(b, "  %8d  %s\n", counts[name], cmp.Or(name, "without a code"))
	}
}
