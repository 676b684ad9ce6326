package judge

import (
	"testing"

	"github.com/fencegate/fencegate/robustness/history"
)

const (
	resourceName = "robust/r1-0"
	rowName      = "row:" + resourceName
)

// story builds small histories with one millisecond for each step.
type story struct {
	Evidence

	now int64
}

func (s *story) tell(op history.Op) *story {
	s.now += ms
	op.Resource, op.Surface, op.Round = resourceName, "library", 1
	if op.Begin == 0 {
		op.Begin, op.End = s.now, s.now+ms/2
	}
	if op.Outcome == "" {
		op.Outcome = history.Done
	}
	s.Ops = append(s.Ops, op)
	return s
}

func (s *story) acquire(id string, token int64) *story {
	return s.tell(history.Op{ID: id, Client: 1, Action: history.Acquire, Token: token, Until: s.now + 10*ms})
}

func (s *story) read(id string, token int64, saw string) *story {
	return s.tell(history.Op{
		ID: id, Client: 1, Action: history.Read, Token: token, Under: true, Register: rowName, Saw: saw,
	})
}

func (s *story) write(id string, token int64, based string, outcome history.Outcome) *story {
	return s.tell(history.Op{
		ID: id, Client: 1, Action: history.Write, Token: token, Outcome: outcome, Based: map[string]string{rowName: based},
	})
}

func effect(seq int64, value, overwrote string, token int64) Effect {
	return Effect{Seq: seq, Register: rowName, Value: value, Overwrote: overwrote, Resource: resourceName, Token: token}
}

func (s *story) stands(effects ...Effect) *story {
	s.Effects = append(s.Effects, effects...)
	return s
}

// expect checks the kinds of the findings.
func (s *story) expect(t *testing.T, want ...Kind) Report {
	t.Helper()
	r := Examine(s.Evidence)
	got := map[Kind]bool{}
	for _, f := range r.Findings {
		got[f.Kind] = true
	}
	ok := len(got) == len(want)
	for _, kind := range want {
		ok = ok && got[kind]
	}
	if !ok {
		t.Errorf("want %q: %s", want, text(t, r))
	}
	return r
}

func TestAWriteThatBeganAfterANewerGrantIsStale(t *testing.T) {
	t.Parallel()
	s := new(story).acquire("a1", 1).acquire("a2", 2).write("w1", 1, "", history.Unknown)
	s.stands(effect(1, "w1", "", 1)).expect(t, Stale)
}

func TestAnEffectAfterANewerHolderHadReadIsStale(t *testing.T) {
	t.Parallel()
	s := new(story).acquire("a1", 1).write("w1", 1, "", history.Unknown).read("r2", 2, "").stands(effect(1, "w1", "", 1))
	s.expect(t, Stale)
}

func TestAWriteThatBeganBeforeANewerGrantMayCome(t *testing.T) {
	t.Parallel()
	s := new(story).acquire("a1", 1).write("w1", 1, "", history.Unknown).acquire("a2", 2).read("r2", 2, "w1")
	s.stands(effect(1, "w1", "", 1)).expect(t)
}

// What counts is when the trigger ran, as far as the two clocks tell.
func TestAnEffectThatCameAfterANewerGrantIsStale(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		after, known int64 // the trigger's time after the grant's end; what is known of the wall clock
		want         []Kind
	}{
		{1, ahead, []Kind{Stale}},
		{0, ahead, nil},
		{1, ahead + 1, nil},
		{1, 0, nil},
	} {
		s := new(story).acquire("a1", 1).write("w1", 1, "", history.Unknown).acquire("a2", 2)
		e := effect(1, "w1", "", 1)
		e.Wall, s.WallAhead = s.Ops[2].End+ahead+c.after, c.known
		s.stands(e).expect(t, c.want...)
	}
}

// A holder whose fence a failover set back is no longer protected.
func TestAFenceThatFellExcusesExactlyItsTokens(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fence Fence
		async bool
		want  []Kind
	}{
		{Fence{resourceName, 1, 2}, true, nil},
		{Fence{resourceName, 1, 2}, false, []Kind{Stale}},
		{Fence{resourceName, 0, 1}, true, []Kind{Stale}},
		{Fence{"robust/r1-1", 1, 2}, true, []Kind{Stale}},
	} {
		s := new(story).acquire("a1", 1).acquire("a2", 2).read("r2", 2, "").write("w1", 1, "", history.Done)
		s.Async, s.Lost = c.async, []Loss{{From: 3*ms + ms/2, To: 3*ms + ms/2 + 1, Fences: []Fence{c.fence}}}
		r := s.stands(effect(1, "w1", "", 1)).expect(t, c.want...)
		if excused := r.Counts.Excused["stale write under a fence that fell"]; (excused == 1) != (c.want == nil) {
			t.Errorf("%+v: %d excused", c.fence, excused)
		}
	}
}

// Effects that a failover lost may be missing, and may have been read before it; not after it, and never with a
// synchronous standby.
func TestALostWriteIsExcusedOnlyBeforeTheFailover(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		async bool
		from  int64
		want  []Kind
	}{
		{"read before it", true, 4 * ms, nil},
		{"read after it", true, 2*ms + ms/2, []Kind{PhantomRead}},
		{"a synchronous standby", false, 4 * ms, []Kind{LostWrite, PhantomRead}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := new(story).acquire("a1", 1).write("w1", 1, "", history.Done).read("r1", 1, "w1")
			s.Async, s.Lost = c.async, []Loss{{From: c.from, To: c.from + 1, Effects: []Effect{effect(1, "w1", "", 1)}}}
			s.now += 5 * ms
			s.read("r2", 1, "").expect(t, c.want...)
		})
	}
}

// A commit that waited for the synchronous standby has an unknown outcome. It may be lost.
func TestAWriteOfUnknownOutcomeMayBeLost(t *testing.T) {
	t.Parallel()
	s := new(story).acquire("a1", 1).write("w1", 1, "", history.Unknown)
	s.Lost = []Loss{{From: 4 * ms, To: 5 * ms, Effects: []Effect{effect(1, "w1", "", 1)}}}
	s.expect(t)
}

// The first attempt committed only on the old primary. The second was refused by the new one, which does not have it.
func TestARefusalAfterTheFailoverIsTrueOfWhatWasLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from int64
		want []Kind
	}{{ms + ms/4, nil}, {4 * ms, []Kind{RefusedButDone}}} {
		s := new(story).acquire("a1", 1).write("w1", 1, "", history.Refused)
		s.Lost = []Loss{{From: c.from, To: c.from + 1, Effects: []Effect{effect(1, "w1", "", 1)}}}
		s.now += 9 * ms
		s.expect(t, c.want...)
	}
}

func TestReadsOfAnOldPrimaryProveNothing(t *testing.T) {
	t.Parallel()
	for _, up := range []bool{true, false} {
		s := new(story).acquire("a1", 1).write("w1", 1, "", history.Done).acquire("a2", 2)
		s.read("r2", 2, "").write("w2", 2, "", history.Done).stands(effect(1, "w1", "", 1), effect(2, "w2", "w1", 2))
		if up {
			s.Returned = []history.Span{{Client: -1, What: "old primary", From: 4*ms - 1, To: 5*ms - 1}}
			s.expect(t)
		} else {
			s.expect(t, Stale, StaleRead, LostUpdate)
		}
	}
}

func TestStopsAndKillsExcuseWhatIsLate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stop history.Span
		want []Kind
	}{
		{history.Span{Client: 1, From: 2, To: 2 + grace}, nil},
		{history.Span{Client: -1, From: 2, To: 2 + grace}, nil},
		{history.Span{Client: 2, From: 2, To: 2 + grace}, []Kind{Late}},
		{history.Span{Client: 1, From: 2, To: grace}, []Kind{Late}},
	} {
		s := new(story).tell(history.Op{
			ID: "a1", Client: 1, Action: history.Acquire, Token: 1, Begin: 1, End: 2*grace + 2, Limit: 3,
		})
		s.Stops = []history.Span{c.stop, {Client: c.stop.Client, What: "again", From: c.stop.From, To: c.stop.To - 1}}
		s.expect(t, c.want...)
	}
	s := new(story).tell(history.Op{ID: "a1", Client: 1, Action: history.Acquire, Outcome: history.Begun, Begin: 5})
	s.Resting = map[int]int64{1: 9}
	s.expect(t, Late)
	s.Stops = []history.Span{{Client: 1, What: Killed, From: 7, To: 7}}
	s.expect(t)
	s.Stops[0].From, s.Stops[0].To = 4, 4
	s.expect(t, Late)
}

func TestTokensMayNotFallAlongTheOrder(t *testing.T) {
	t.Parallel()
	s := new(story).write("w1", 1, "w2", history.Unknown).write("w2", 2, "", history.Unknown)
	s.stands(effect(1, "w2", "", 2), effect(2, "w1", "w2", 1)).expect(t, Stale)
	s = new(story).write("w1", 1, "w2", history.Unknown).write("w2", 2, "", history.Unknown)
	lost := []Effect{effect(1, "w2", "", 2), effect(2, "w1", "w2", 1)}
	s.Async, s.Lost = true, []Loss{{From: 4 * ms, To: 5 * ms, Effects: lost}}
	s.expect(t, Stale)
}

func TestAnEffectWithoutALeaseIsFromNowhere(t *testing.T) {
	t.Parallel()
	new(story).write("w1", 0, "", history.Unknown).stands(effect(1, "w1", "", 0)).expect(t, FromNowhere)
}

func TestAValueThatWasRefusedIsAPhantomAlsoWhereItHasAnEffect(t *testing.T) {
	t.Parallel()
	s := new(story).acquire("a1", 1).write("w1", 1, "", history.Refused).read("r1", 1, "w1")
	s.stands(effect(1, "w1", "", 1)).expect(t, RefusedButDone, PhantomRead)
}
