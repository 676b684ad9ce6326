package judge

import (
	"slices"
	"testing"

	"github.com/fencegate/fencegate/robustness/history"
)

// tampered is a clean history that a mutation changes.
type tampered struct {
	Evidence

	byID map[string]int
	used map[string]bool // values that were read, or on which writes are based
}

// tamperable has one record for each call, and gaps between the numbers of the effects.
func tamperable(ev Evidence) *tampered {
	m := &tampered{Evidence: ev, byID: map[string]int{}, used: map[string]bool{}}
	m.Ops = history.Last(ev.Ops)
	m.Effects = slices.Clone(ev.Effects)
	for i, op := range m.Ops {
		m.byID[op.ID] = i
		if op.Saw != "" {
			m.used[op.Saw] = true
		}
		for _, value := range op.Based {
			m.used[value] = true
		}
	}
	for i := range m.Effects {
		m.Effects[i].Seq *= 10
	}
	return m
}

// reset makes m a copy of clean, in m's memory. They share the maps in Based.
func (m *tampered) reset(clean *tampered) {
	ops, effects := m.Ops[:0], m.Effects[:0]
	*m = *clean
	m.Ops = append(ops, clean.Ops...)             //nolint:gocritic // m's own memory
	m.Effects = append(effects, clean.Effects...) //nolint:gocritic // m's own memory
}

func (m *tampered) op(id string) *history.Op { return &m.Ops[m.byID[id]] }

// chain is the order of a register, as indexes of Effects.
func (m *tampered) chain(register string) []int {
	var at []int
	for i, e := range m.Effects {
		if e.Register == register {
			at = append(at, i)
		}
	}
	return at
}

// next is the effect after the one at i on its register.
func (m *tampered) next(i int) *Effect {
	for k := i + 1; k < len(m.Effects); k++ {
		if m.Effects[k].Register == m.Effects[i].Register {
			return &m.Effects[k]
		}
	}
	return nil
}

// insert adds an effect after the one at i. The next effect overwrites it.
func (m *tampered) insert(i int, op *history.Op) {
	e := m.Effects[i]
	if next := m.next(i); next != nil {
		next.Overwrote = op.ID
	}
	m.Effects = append(m.Effects, Effect{
		Seq: e.Seq + 1, Register: e.Register, Value: op.ID, Overwrote: e.Value, Resource: e.Resource, Token: op.Token,
	})
}

// unmake removes the effect at i. The next effect overwrites the one before it.
func (m *tampered) unmake(i int) {
	if next := m.next(i); next != nil {
		next.Overwrote = m.Effects[i].Overwrote
	}
	m.Effects = slices.Delete(m.Effects, i, i+1)
}

// single reports that writes of the register set no other register.
func (m *tampered) single(register string) bool {
	for _, op := range m.Ops {
		if _, ok := op.Based[register]; ok {
			return len(op.Based) == 1
		}
	}
	return true
}

// quiet reports that the effect at i is of a Done write that
// no call saw, and that the same lease wrote the next effect.
func (m *tampered) quiet(i int) bool {
	e, next := m.Effects[i], m.next(i)
	return m.op(e.Value).Outcome == history.Done && !m.used[e.Value] && next != nil && next.Token == e.Token
}

// mutation changes a history at the candidate, the call or effect with that index, or reports that it can't. Every
// change must cause the kind, and at least one must cause no other.
type mutation struct {
	name   string
	kind   Kind
	change func(m *tampered, i int) bool
}

func ofEffect(change func(m *tampered, i int, e *Effect) bool) func(*tampered, int) bool {
	return func(m *tampered, i int) bool { return i < len(m.Effects) && change(m, i, &m.Effects[i]) }
}

func ofOp(change func(m *tampered, op *history.Op) bool) func(*tampered, int) bool {
	return func(m *tampered, i int) bool { return i < len(m.Ops) && change(m, &m.Ops[i]) }
}

func auditRead(op *history.Op) bool { return op.Client == auditor && op.Action == history.Read }

func toldAs(outcome history.Outcome) func(*tampered, int) bool {
	return ofEffect(func(m *tampered, _ int, e *Effect) bool {
		op := m.op(e.Value)
		if m.used[e.Value] || op.Outcome != history.Done {
			return false
		}
		op.Outcome, op.Code = outcome, "ZF001"
		return true
	})
}

func TestEveryMutationOfACleanHistoryIsFound(t *testing.T) {
	t.Parallel()
	clean := tamperable(simulate(7, 1, 2000, false))
	if r := Examine(clean.Evidence); len(r.Findings) > 0 {
		t.Fatal(text(t, r))
	}
	had := map[Kind]bool{}
	for _, mut := range slices.Concat(effectMutations, callMutations) {
		had[mut.kind] = true
		t.Run(string(mut.kind)+", "+mut.name, func(t *testing.T) {
			t.Parallel()
			tryAll(t, clean, mut)
		})
	}
	for _, kind := range kinds {
		if !had[kind] && kind != Overlap && kind != Broken { // tested separately, and found by the run
			t.Errorf("no mutation for %s", kind)
		}
	}
}

// tryAll makes up to 10 changes, one at a time.
func tryAll(t *testing.T, clean *tampered, mut mutation) {
	t.Helper()
	tried, exact := 0, 0
	var m tampered
	for i := 0; i < len(clean.Ops) && tried < 10; i++ {
		m.reset(clean)
		if !mut.change(&m, i) {
			continue
		}
		tried++
		r := Examine(m.Evidence)
		found := map[Kind]bool{}
		for _, f := range r.Findings {
			found[f.Kind] = true
		}
		if !found[mut.kind] {
			t.Fatalf("candidate %d is not found: %s", i, text(t, r))
		}
		if len(found) == 1 {
			exact++
		}
	}
	if exact == 0 {
		t.Fatalf("of %d candidates none gives %s alone", tried, mut.kind)
	}
}
