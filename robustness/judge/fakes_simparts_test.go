package judge

import (
	"maps"
	"slices"

	"github.com/fencegate/fencegate/robustness/history"
)

type event struct {
	at, n int64
	do    func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].n < e[j].n
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}

// failover takes back the effects of the last milliseconds.
func (s *sim) failover() {
	lag := s.now - s.upTo(60*ms)
	loss := Loss{From: s.now, To: s.now + 10*ms}
	s.down = loss.To
	for len(s.effects) > 0 && s.effects[len(s.effects)-1].at >= lag {
		loss.Effects = append(loss.Effects, s.effects[len(s.effects)-1].Effect)
		s.effects = s.effects[:len(s.effects)-1]
	}
	slices.Reverse(loss.Effects)
	if len(loss.Effects) > 3 {
		s.seq -= 2 // the new primary gives some numbers again
	}
	for _, name := range slices.Sorted(maps.Keys(s.places)) {
		r := s.places[name]
		was := r.fence
		for len(r.past) > 0 && r.past[len(r.past)-1].at >= lag {
			last := r.past[len(r.past)-1]
			r.fence, r.values = last.fence, last.values
			r.past = r.past[:len(r.past)-1]
		}
		if r.fence < was {
			loss.Fences = append(loss.Fences, Fence{Resource: name, Token: r.fence, Was: was})
		}
	}
	s.losses = append(s.losses, loss)
}

// audit acquires the resource as soon as it is free, and reads every register.
func (s *sim) audit(round int, r *simResource) {
	op := history.Op{Client: auditor, Round: round, Surface: "auditor", Resource: r.name}
	s.acquire(op, r, func(got history.Op) {
		if got.Outcome != history.Done {
			s.after(20*ms, func() { s.audit(round, r) })
			return
		}
		op.Token = got.Token
		s.readAll(op, r, 0, map[string]string{}, func(map[string]string) {})
	})
}
