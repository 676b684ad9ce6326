package judge

import (
	"testing"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

// A released lease that blocks an acquisition is a finding, unless a Redis node was at fault.
func TestAReleasedLeaseInTheWayIsAFinding(t *testing.T) {
	t.Parallel()
	const s = int64(time.Second)
	ops := []history.Op{
		{ID: "got", Action: history.Acquire, Outcome: history.Done, Client: 1, Resource: "r", Token: 1, Begin: 1 * s, End: 2 * s, Until: 9 * s},
		{ID: "free", Action: history.Release, Outcome: history.Done, Client: 1, Resource: "r", Token: 1, Begin: 20 * s, End: 21 * s},
		{ID: "held", Action: history.Acquire, Outcome: history.Refused, Client: 2, Resource: "r", HeldBy: 1, Begin: 22 * s, End: 23 * s},
	}
	for name, c := range map[string]struct {
		outage history.Span
		want   int
	}{
		"no fault":          {history.Span{}, 1},
		"a fault elsewhere": {history.Span{What: "net-hold/client-postgres", From: 19 * s, To: 24 * s}, 1},
		"a node away":       {history.Span{What: "net-hold/client-redis", From: 22 * s, To: 24 * s}, 0},
		"a node back":       {history.Span{What: "redis-kill", From: 14 * s, To: 15 * s}, 0},
		"long before":       {history.Span{What: "redis-kill", From: 10 * s, To: 13 * s}, 1},
		"afterwards":        {history.Span{What: "redis-kill", From: 24 * s, To: 25 * s}, 1},
	} {
		report := Examine(Evidence{Ops: ops, Outages: []history.Span{c.outage}})
		n := 0
		for _, f := range report.Findings {
			if f.Kind == NotFree {
				n++
			}
		}
		if n != c.want {
			t.Errorf("%s: %d findings, want %d: %v", name, n, c.want, report.Findings)
		}
	}
}

// lost are paces of a second each, up to a moment, in which the machine lost a tenth of a second for each of tenths.
func lost(tenths, until int64) (paces history.Paces) {
	const s = int64(time.Second)
	for at := int64(0); at < until; at += s {
		paces = append(paces, history.Pace{From: at, To: at + s, Lost: tenths * s / 10, Worst: nodeTime})
	}
	return paces
}

// What the machine lost counts in no bound. It loses nine tenths at most, so what hangs is found on any machine.
func TestWhatTheMachineLostIsExcusedAndWhatHangsIsNot(t *testing.T) {
	t.Parallel()
	const s = int64(time.Second)
	call := history.Op{ID: "c", Client: 1, Surface: "library", Resource: "r", Action: history.Write, Outcome: history.Unknown, Limit: 5 * s, Begin: s}
	ended := func(at int64) Evidence {
		op := call
		op.End = at
		return Evidence{Ops: []history.Op{op}}
	}
	open := func(now int64) Evidence {
		op := call
		op.Outcome = history.Begun
		return Evidence{Ops: []history.Op{op}, Now: now}
	}
	audit := func(got, now int64) Evidence {
		op := history.Op{ID: "a", Surface: "audit library", Resource: "r", Action: history.Acquire, Outcome: history.Refused, Begin: s, End: 2 * s}
		ev := Evidence{Ops: []history.Op{op}, Now: now}
		if got != 0 {
			op.ID, op.Outcome, op.Token, op.Begin, op.End = "b", history.Done, 1, got-1, got
			ev.Ops = append(ev.Ops, op)
		}
		return ev
	}
	probed := func(outcome history.Outcome, begin, end int64) Evidence {
		op := history.Op{ID: "p", Surface: "probe library", Round: 1, Resource: "r", Action: history.Acquire, Outcome: history.Done, Begin: s, End: 2 * s, Token: 1}
		if outcome == history.Done {
			op.Begin, op.End = begin, end
			return Evidence{Ops: []history.Op{op}, Healed: map[int]int64{1: s}, Now: end + 1}
		}
		again := op
		again.ID, again.Outcome, again.Begin, again.End = "q", outcome, begin, end
		return Evidence{Ops: []history.Op{op, again}, Healed: map[int]int64{1: s / 2}, Now: end + 1}
	}
	held := func(majority bool, at int64) Evidence {
		got := history.Op{ID: "got", Action: history.Acquire, Outcome: history.Done, Client: 1, Resource: "r", Token: 1, Begin: s, End: 2 * s}
		free := history.Op{ID: "free", Action: history.Release, Outcome: history.Done, Client: 1, Resource: "r", Token: 1, Begin: 3 * s, End: 4 * s}
		no := history.Op{ID: "no", Action: history.Acquire, Outcome: history.Refused, Client: 2, Resource: "r", HeldBy: 1, Begin: at, End: at + s}
		return Evidence{Ops: []history.Op{got, free, no}, Majority: majority}
	}
	for name, c := range map[string]struct {
		ev     Evidence
		tenths int64
		from   int64 // since when it is slow
		stop   history.Span
		want   Kind
		slow   Kind
	}{
		"late on a fast machine":                  {ev: ended(16 * s), want: Late},
		"late on a slow one":                      {ev: ended(16 * s), tenths: 1, slow: Late},
		"later than the machine lost":             {ev: ended(18 * s), tenths: 1, want: Late},
		"in time on a slow one":                   {ev: ended(15 * s), tenths: 9},
		"stopped, and the machine was slow":       {ev: ended(25 * s), tenths: 5, stop: history.Span{Client: 1, From: s, To: 9*s - 1}, slow: Late},
		"what was lost during a stop counts once": {ev: ended(25 * s), tenths: 1, stop: history.Span{Client: 1, From: s, To: 9*s - 1}, want: Late},
		"no answer yet on a slow one":             {ev: open(100 * s), tenths: 9, slow: Late},
		"a hang on the slowest machine":           {ev: open(152 * s), tenths: 9, want: Late},
		"never free on a fast machine":            {ev: audit(0, 32*s), want: NotFree},
		"not free yet on a slow one":              {ev: audit(0, 32*s), tenths: 1},
		"free late on a slow one":                 {ev: audit(33*s, 40*s), tenths: 1, slow: NotFree},
		"never free on the slowest machine":       {ev: audit(0, 302*s), tenths: 9, want: NotFree},
		"recovered late on a fast machine":        {ev: probed(history.Done, 20*s, 32*s), want: NotRecovered},
		"recovered late on a slow one":            {ev: probed(history.Done, 20*s, 32*s), tenths: 1, slow: NotRecovered},
		"not recovered on the slowest":            {ev: probed(history.Done, 20*s, 302*s), tenths: 9, want: NotRecovered},
		"failed again":                            {ev: probed(history.Failed, 80*s, 82*s), tenths: 4, want: NotRecovered},
		"failed again on a slow machine":          {ev: probed(history.Failed, 80*s, 82*s), tenths: 5, slow: NotRecovered},
		"refused at once on a slow machine":       {ev: probed(history.Failed, 80*s, 80*s+s/1000), tenths: 5, want: NotRecovered},
		"held after a release":                    {ev: held(true, 5*s), want: NotFree},
		"held by a node that is slow":             {ev: held(true, 5*s), tenths: 1, slow: NotFree},
		"held although there is one place":        {ev: held(false, 5*s), tenths: 1, want: NotFree},
		"held for longer than a lease":            {ev: held(true, 9*s), tenths: 1, want: NotFree},
		"held by a node that is slow afterwards":  {ev: held(true, 5*s), tenths: 1, from: 5 * s, want: NotFree},
	} {
		c.ev.Paces, c.ev.Stops = lost(c.tenths, 400*s)[c.from/s:], []history.Span{c.stop}
		report := Examine(c.ev)
		var found Kind
		for _, f := range report.Findings {
			found = f.Kind
		}
		if len(report.Findings) > 1 || found != c.want || report.Counts.Slow[c.slow] != len(report.Counts.Slow) || (c.slow != "") != (len(report.Counts.Slow) == 1) {
			t.Errorf("%s: want %q, and %q excused; excused %v: %v", name, c.want, c.slow, report.Counts.Slow, report.Findings)
		}
	}
}
