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
