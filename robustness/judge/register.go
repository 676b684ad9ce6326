package judge

import (
	"cmp"
	"slices"

	"github.com/fencegate/fencegate/robustness/history"
)

// register is the evidence about one register.
type register struct {
	name   string
	reads  []*history.Op // Done, ordered by their beginnings
	writes []*history.Op // ordered by their beginnings
	chain  []Effect      // effects that stand, in order
	lost   []lostEffect  // effects that failovers took back
	at     map[string]*places
}

// lostEffect is an effect that a failover took back.
type lostEffect struct {
	Effect

	loss  int // index of the failover
	place place
}

// place is a position in the order of a register's effects. The effect that stands at index i is at {i+1, 0}. Effects
// after it that a failover took back are at {i+1, 1}, {i+1, 2} and so on. {0, 0} is before every effect.
type place struct{ main, off int }

func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(p.main, q.main), cmp.Compare(p.off, q.off))
}

func (p place) before(q place) bool { return p.compare(q) < 0 }

// places are the positions of a value.
type places struct {
	stands []int // main positions
	lost   []int // indexes of register.lost
}

func (r *register) of(value string) *places {
	if r.at[value] == nil {
		r.at[value] = &places{}
	}
	return r.at[value]
}

// arrange orders the effects.
func (r *register) arrange(losses []Loss) {
	r.of("").stands = []int{0}
	slices.SortFunc(r.chain, func(a, b Effect) int { return cmp.Compare(a.Seq, b.Seq) })
	for i, e := range r.chain {
		p := r.of(e.Value)
		p.stands = append(p.stands, i+1)
	}
	slices.SortStableFunc(r.lost, func(a, b lostEffect) int {
		return cmp.Or(cmp.Compare(a.loss, b.loss), cmp.Compare(a.Seq, b.Seq))
	})
	for i := range r.lost {
		e := &r.lost[i]
		if i > 0 && r.lost[i-1].loss == e.loss {
			e.place = place{r.lost[i-1].place.main, r.lost[i-1].place.off + 1}
		} else {
			e.place = place{r.branch(e.Effect), 1}
		}
		p := r.of(e.Value)
		p.lost = append(p.lost, i)
	}
}

// branch is the position of the effect after which the lost ones came. The value that the first of them overwrote
// determines it. Its number does not, because the new primary may give the number again.
func (r *register) branch(first Effect) int {
	if p := r.at[first.Overwrote]; p != nil && len(p.stands) > 0 {
		return p.stands[len(p.stands)-1]
	}
	n := 0
	for _, e := range r.chain {
		if e.Seq < first.Seq {
			n++
		}
	}
	return n
}

// stands reports that the value has an effect that stands.
func (r *register) stands(value string) bool {
	p := r.at[value]
	return p != nil && len(p.stands) > 0
}

// wasLost reports that a failover took back an effect of the value.
func (r *register) wasLost(value string) bool {
	p := r.at[value]
	return p != nil && len(p.lost) > 0
}

// lostAfter reports that an effect of the value existed at a moment, and that a later failover took it back.
func (r *register) lostAfter(value string, at int64, losses []Loss) bool {
	p := r.at[value]
	return p != nil && slices.ContainsFunc(p.lost, func(i int) bool { return at < losses[r.lost[i].loss].From })
}

// sight is where in the order of effects a call may have been: from
// first to last. They differ only for values with several effects.
type sight struct {
	first, last place
	loss        int // the failover that took back the value; -1: it stands
}

// sighted returns the sight of a value for a call that began at a moment. A value that a failover took back can only be
// seen before the new primary answers.
func (r *register) sighted(value string, began int64, losses []Loss, async bool) (sight, bool) {
	p := r.at[value]
	if p == nil {
		return sight{}, false
	}
	s, found := sight{loss: -1}, false
	see := func(at place, loss int) {
		if !found {
			s, found = sight{first: at, last: at, loss: loss}, true
			return
		}
		if at.before(s.first) {
			s.first, s.loss = at, loss
		}
		if s.last.before(at) {
			s.last = at
		}
	}
	for _, main := range p.stands {
		see(place{main, 0}, -1)
	}
	for _, i := range p.lost {
		if e := r.lost[i]; async && began < losses[e.loss].To {
			see(e.place, e.loss)
		}
	}
	return s, found
}

// bound is the latest certain position, and the call that proves it.
type bound struct {
	place place
	by    *history.Op
}

// floors calls visit for each op with the latest position that was reached before it began: by a write that was Done,
// or by a read. The ops are ordered by their beginnings.
func (r *register) floors(ops []*history.Op, res *resource, visit func(op *history.Op, floor bound)) {
	type proof struct {
		op    *history.Op
		sight sight
	}
	var proofs []proof
	note := func(op *history.Op, value string) {
		if s, ok := r.sighted(value, op.Begin, res.losses, res.async); ok {
			proofs = append(proofs, proof{op, s})
		}
	}
	for _, op := range r.reads {
		note(op, op.Saw)
	}
	for _, op := range r.writes {
		if op.Outcome == history.Done {
			note(op, op.ID)
		}
	}
	slices.SortStableFunc(proofs, func(a, b proof) int { return cmp.Compare(a.op.End, b.op.End) })
	var standing bound
	taken := make([]bound, len(res.losses))
	next := 0
	for _, op := range ops {
		for ; next < len(proofs) && proofs[next].op.End < op.Begin; next++ {
			p := proofs[next]
			standing.raise(place{p.sight.first.main, 0}, p.op)
			if p.sight.loss >= 0 {
				taken[p.sight.loss].raise(p.sight.first, p.op)
			}
		}
		floor := standing
		for i, t := range taken {
			if t.by != nil && op.End != 0 && op.End <= res.losses[i].From {
				floor.raise(t.place, t.by)
			}
		}
		if floor.by != nil {
			visit(op, floor)
		}
	}
}

func (b *bound) raise(at place, by *history.Op) {
	if b.by == nil || b.place.before(at) {
		b.place, b.by = at, by
	}
}
