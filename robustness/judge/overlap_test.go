package judge

import (
	"testing"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

// Two valid leases at once are a finding if no clock was set, unless the older one's validity had ended.
func TestTwoHoldersAreAFindingWhereLocksExclude(t *testing.T) {
	t.Parallel()
	const s = int64(time.Second)
	got := func(id string, token, from, until int64) history.Op {
		return history.Op{
			ID: id, Client: 1, Action: history.Acquire, Outcome: history.Done, Resource: "r", Token: token,
			Begin: from - 1, End: from, Until: until,
		}
	}
	ends := func(action history.Action, client int, token, at int64) history.Op {
		return history.Op{
			ID: "end", Client: client, Action: action, Outcome: history.Done, Resource: "r", Token: token, Begin: at, End: at + 1,
		}
	}
	lost := func(at int64) history.Op {
		o := ends(history.Renew, 1, 1, at)
		o.Outcome, o.Code = history.Refused, "lease_lost"
		return o
	}
	for name, c := range map[string]struct {
		exclusion bool
		more      []history.Op
		want      int
	}{
		"no clock was set":                     {true, nil, 1},
		"a clock was set":                      {false, nil, 0},
		"the older is released":                {true, []history.Op{ends(history.Release, 1, 1, 2*s)}, 0},
		"the older knows that it is lost":      {true, []history.Op{lost(2 * s)}, 0},
		"the older learns it too late":         {true, []history.Op{lost(4 * s)}, 1},
		"the older's renewal was not answered": {true, []history.Op{ends(history.Renew, 1, 1, 2*s)}, 1},
		"the older is revoked":                 {true, []history.Op{ends(history.Revoke, -1, 2, 2*s)}, 0},
	} {
		ops := append([]history.Op{got("a", 1, s, 5*s), got("b", 3, 3*s, 6*s)}, c.more...)
		report := Examine(Evidence{Ops: ops, Exclusion: c.exclusion})
		n := 0
		for _, f := range report.Findings {
			if f.Kind == Overlap {
				n++
			}
		}
		if n != c.want {
			t.Errorf("%s: %d findings, want %d: %v", name, n, c.want, report.Findings)
		}
	}
}
