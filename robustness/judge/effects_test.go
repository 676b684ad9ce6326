package judge

import (
	"slices"
	"testing"

	"github.com/fencegate/fencegate/robustness/history"
)

// A write of unknown outcome has set a row and a file. The auditor, who holds the resource after it, finds no file.
func TestARowWhoseFileTheAuditorDoesNotFindIsTorn(t *testing.T) {
	t.Parallel()
	const row, file = "row:robust/r1-1", "file:robust/r1-1/data"
	write := history.Op{
		ID: "c1.1-1", Client: 1, Action: history.Write, Outcome: history.Unknown, Resource: "robust/r1-1", Token: 3,
		Based: map[string]string{row: "", file: ""}, Begin: 10, End: 20,
	}
	read := func(id, surface, register, saw string, token, end int64) history.Op {
		return history.Op{
			ID: id, Client: auditor, Surface: surface, Action: history.Read, Outcome: history.Done, Resource: "robust/r1-1",
			Register: register, Saw: saw, Token: token, Under: true, Begin: end - 1, End: end,
		}
	}
	gone := read("c0.1-2", "audit publish", file, "", 4, 40)
	fell := Loss{From: 50, To: 60, Fences: []Fence{{Resource: "robust/r1-1", Token: 3, Was: 4}}}
	for name, c := range map[string]struct {
		reads []history.Op
		lost  []Loss
		torn  bool
	}{
		"it is gone":           {[]history.Op{gone}, nil, true},
		"it is there":          {[]history.Op{read("c0.1-2", "audit publish", file, "c1.1-1", 4, 40)}, nil, false},
		"the last read counts": {[]history.Op{gone, read("c0.1-3", "audit publish", file, "c1.1-1", 5, 50)}, nil, false},
		"the write came later": {[]history.Op{read("c0.1-2", "audit publish", file, "", 2, 5)}, nil, false},
		"a probe came earlier": {[]history.Op{read("c0.1-2", "probe publish", file, "", 4, 40)}, nil, false},
		"its fence has fallen": {[]history.Op{gone}, []Loss{fell}, false},
		"nobody looked":        {nil, nil, false},
	} {
		ev := Evidence{Ops: append([]history.Op{write}, c.reads...), Lost: c.lost, Async: len(c.lost) > 0}
		for i, register := range []string{row, file} {
			ev.Effects = append(ev.Effects, Effect{
				Seq: int64(i + 1), Register: register, Value: write.ID, Resource: write.Resource, Token: write.Token,
			})
		}
		report := Examine(ev)
		torn := slices.ContainsFunc(report.Findings, func(f Finding) bool { return f.Kind == Torn && f.Where == row })
		if torn != c.torn {
			t.Errorf("%s: %s", name, text(t, report))
		}
	}
}
