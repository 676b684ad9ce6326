package judge

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

// rounds gives a judge some clean rounds and returns the evidence of the first.
func rounds(t *testing.T, j *Judge, n int, async bool) Evidence {
	t.Helper()
	var first Evidence
	for round := 1; round <= n; round++ {
		ev := simulate(uint64(round), round, 500, async)
		ev.Budget = 20 * time.Second
		if round == 1 {
			first = ev
		}
		if r := j.Add(ev); len(r.Findings) > 0 {
			t.Fatal(text(t, r))
		}
	}
	return first
}

func TestAZombieOfAnEarlierRoundIsJudged(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 2, idleRounds + 1, idleRounds + 3} { // before and after the first round is compacted
		var j Judge
		m := tamperable(rounds(t, &j, n, false))
		last := m.Effects[m.chain("row:robust/r1-0")[0]]
		for _, i := range m.chain("row:robust/r1-0") {
			last = m.Effects[i]
		}
		zombie := history.Op{
			ID: "c99-1", Client: 99, Round: 1, Surface: "library", Action: history.Write, Outcome: history.Done,
			Resource: last.Resource, Token: last.Token,
			Based: map[string]string{last.Register: last.Value}, Begin: m.Now + 1, End: m.Now + 2,
		}
		late := Evidence{Ops: []history.Op{zombie}, Effects: []Effect{{
			Seq: 1e9, Register: last.Register, Value: zombie.ID, Overwrote: last.Value,
			Resource: last.Resource, Token: last.Token,
		}}}
		if r := j.Add(late); len(r.Findings) != 1 || r.Findings[0].Kind != Stale {
			t.Errorf("after %d rounds: %s", n, text(t, r))
		}
		if r := j.Add(late); len(r.Findings) != 0 {
			t.Errorf("reported twice: %s", text(t, r))
		}
	}
}

func TestEvidenceMayComeInPiecesAndAgain(t *testing.T) {
	t.Parallel()
	for _, async := range []bool{false, true} {
		ev := simulate(3, 1, 800, async)
		whole := Examine(ev)
		var j Judge
		// The effects that a failover took back existed before it.
		early := Evidence{Ops: ev.Ops[:len(ev.Ops)/2], Effects: ev.Effects[:len(ev.Effects)/2], Async: async}
		for _, loss := range ev.Lost {
			early.Effects = append(slices.Clip(early.Effects), loss.Effects...)
		}
		j.Add(early) // the findings of half a round are ignored
		j.reported = map[string]bool{}
		for range 2 {
			r := j.Add(ev)
			if len(r.Findings) > 0 {
				t.Fatal(text(t, r))
			}
			got, want := r.Counts, whole.Counts
			if got.Effects != want.Effects || got.Acquisitions != want.Acquisitions || got.Overlaps != want.Overlaps {
				t.Errorf("counted %+v, and at once %+v", got, want)
			}
			for what, n := range want.Ops {
				if got.Ops[what] != n {
					t.Errorf("%s: %d, and at once %d", what, got.Ops[what], n)
				}
			}
		}
	}
}

// A round's 20,000 calls are judged in less than 2 s on an idle core.
func TestARoundIsJudgedInTime(t *testing.T) {
	t.Parallel()
	ev := simulate(1, 1, 20000, true)
	begin := time.Now()
	r := Examine(ev)
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("took %s", took)
	} else {
		t.Logf("%d calls took %s", 20000, took)
	}
	if len(r.Findings) > 0 {
		t.Error(text(t, r))
	}
}

func TestAReportNamesTheCallsInTheOrderOfTime(t *testing.T) {
	t.Parallel()
	s := new(story).acquire("a1", 1).acquire("a2", 2).write("w1", 1, "", history.Unknown).stands(effect(1, "w1", "", 1))
	s.Outages = []history.Span{{What: "redis 2 is stopped", From: 3 * ms, To: 4 * ms}}
	got := text(t, s.expect(t, Stale))
	at := 0
	for _, want := range []string{
		"1 findings: 1 stale.", "STALE row:robust/r1-0: effect 1, w1 with token 1, began at 0.002000 s",
		"  0.001000 s +0.000500 s a2 client 1 library: acquire robust/r1-0 token 2: done",
		"  0.002000 s +0.000500 s w1 client 1 library: write robust/r1-0 token 1, row:robust/r1-0 from nothing: unknown",
		"  during redis 2 is stopped, 0.002000 s to 0.003000 s",
		"3 calls, 1 effects, 2 leases.", "Leases that overlapped in belief: 1, at most 7.500 ms.", "library acquire done",
	} {
		i := strings.Index(got[at:], want)
		if i < 0 {
			t.Fatalf("%q is missing, or comes too early: %s", want, got)
		}
		at += i
	}
}
