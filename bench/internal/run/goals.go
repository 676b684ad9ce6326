package run

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Goal is a line of the last table: a ratio of ours and a peer, or of ours and what is wanted.
type Goal struct {
	Subject    string  `json:"subject"`
	Name       string  `json:"name"`
	Ours       string  `json:"ours"`
	Peer       string  `json:"peer"`
	Ratio      float64 `json:"ratio"`
	Want       float64 `json:"want"`
	AtMost     bool    `json:"at_most"`    // lower is better
	Compulsory bool    `json:"compulsory"` // a miss fails the benchmark, also without -strict
}

// Met reports whether the goal is met.
func (g Goal) Met() bool {
	if g.AtMost {
		return g.Ratio <= g.Want
	}
	return g.Ratio >= g.Want
}

// Add adds a goal.
func (b *Bench) Add(g Goal) {
	g.Subject = b.Subject
	b.Goals = append(b.Goals, g)
}

// failing is the share of a peer's operations that may fail.
const failing = 0.05

// compare ends the benchmark if a peer hardly worked: then a ratio to it says nothing.
func (r *Result) compare(peer string) {
	failed := 0
	for _, n := range r.Failed {
		failed += n
	}
	switch tried := failed + len(r.Times); {
	case r.Rate() == 0:
		Check(fmt.Errorf("%s, a peer, did nothing", peer))
	case float64(failed) > failing*float64(tried):
		Check(fmt.Errorf("%s, a peer, failed %d times of %d", peer, failed, tried))
	}
}

// AtLeast adds the goal that one contender's rate is at least this share of a peer's, if both were measured. A peer that
// hardly worked ends the benchmark.
func (b *Bench) AtLeast(name string, results Results, ours, peer string, want float64) {
	a, z := results[ours], results[peer]
	if a == nil || z == nil {
		return
	}
	z.compare(peer)
	b.Add(Goal{Name: name, Ours: a.Show(), Peer: peer + ":" + z.Show(), Ratio: Median(a.Over(z)), Want: want})
}

// Within adds the goal that a time is at most the limit.
func (b *Bench) Within(name string, took, limit time.Duration) {
	b.Quicker(name, took.Round(time.Microsecond), "limit", limit, 1)
}

// Quicker adds the goal that a time is at most this share of a peer's.
func (b *Bench) Quicker(name string, took time.Duration, peer string, theirs time.Duration, share float64) {
	if theirs <= 0 {
		Check(fmt.Errorf("%s has no time of %s", name, peer))
	}
	b.Add(Goal{Name: name, Ours: took.String(), Peer: peer + ":" + theirs.String(), Ratio: float64(took) / float64(theirs), Want: share, AtMost: true})
}

// Table prints the goals, and returns how many are missed, and how many of those are compulsory.
func Table(out io.Writer, goals []Goal) (missed, compulsory int) {
	if len(goals) == 0 {
		return 0, 0
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "\nsubject\tgoal\tours\tpeer\tratio\twant\tmet")
	for _, g := range goals {
		sign, answer := ">=", "yes"
		if g.AtMost {
			sign = "<="
		}
		if !g.Met() {
			answer = "no"
			missed++
			if g.Compulsory {
				compulsory++
			}
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%.3f\t%s%.4g\t%s\n", g.Subject, g.Name, g.Ours, g.Peer, g.Ratio, sign, g.Want, answer)
	}
	_ = table.Flush()
	return missed, compulsory
}
