package judge

import (
	"maps"
	"slices"

	"github.com/fencegate/fencegate/robustness/history"
)

var effectMutations = []mutation{
	{"no effect", LostWrite, ofEffect(func(m *tampered, i int, e *Effect) bool {
		if !m.quiet(i) || !m.single(e.Register) {
			return false
		}
		m.unmake(i)
		return true
	})},
	{"undone", LostWrite, ofEffect(func(m *tampered, i int, e *Effect) bool {
		next := m.next(i)
		if m.used[e.Value] || next == nil || !m.single(e.Register) {
			return false
		}
		next.Overwrote = e.Overwrote
		return true
	})},
	{"reported as refused", RefusedButDone, toldAs(history.Refused)},
	{"reported as failed", FailedButDone, toldAs(history.Failed)},
	{"a second effect", DoneTwice, ofEffect(func(m *tampered, i int, e *Effect) bool {
		m.insert(i, m.op(e.Value))
		if next := m.next(i); next != nil {
			next.Overwrote = e.Value
		}
		return true
	})},
	{"an effect of no call", FromNowhere, ofEffect(func(m *tampered, i int, e *Effect) bool {
		if next := m.next(i); next == nil || next.Token != e.Token {
			return false
		}
		m.insert(i, &history.Op{ID: "c99-1", Token: e.Token})
		return true
	})},
	{"an effect without a token", FromNowhere, ofEffect(func(_ *tampered, _ int, e *Effect) bool {
		e.Token = 0
		return true
	})},
	{"an effect under another resource", FromNowhere, ofEffect(func(_ *tampered, _ int, e *Effect) bool {
		e.Resource = "robust"
		return true
	})},
	{"a value of no call", FromNowhere, ofOp(func(_ *tampered, op *history.Op) bool {
		op.Saw = "c99-1"
		return auditRead(op)
	})},
	{"a zombie's effect at the end", Stale, ofOp(func(m *tampered, op *history.Op) bool {
		if op.Outcome != history.Refused || op.Action != history.Write || len(op.Based) > 1 {
			return false
		}
		for register := range op.Based {
			chain := m.chain(register)
			op.Based = map[string]string{register: m.Effects[chain[len(chain)-1]].Value}
			op.Outcome, op.Code = history.Unknown, ""
			m.insert(chain[len(chain)-1], op)
		}
		return true
	})},
	{"an effect after a newer grant, of a write that began before", Stale, ofEffect(func(m *tampered, _ int, e *Effect) bool {
		newer := m.after(e, func(op *history.Op) bool { return op.Action == history.Acquire && op.Outcome == history.Done })
		if newer == nil {
			return false
		}
		e.Wall = newer.End + 1 + m.WallAhead
		return true
	})},
	{"an effect after a revocation, of a write that began before", Revoked, ofEffect(func(m *tampered, _ int, e *Effect) bool {
		op := m.op(e.Value)
		m.Ops = append(m.Ops, history.Op{
			ID: "c99-1", Client: 99, Surface: "revoke", Action: history.Revoke, Outcome: history.Done, Resource: op.Resource,
			Token: e.Token + 1, Begin: op.Begin, End: op.Begin + 1,
		})
		return e.Wall-m.WallAhead > op.Begin+1
	})},
	{"an effect before a holder's that nobody read", LostUpdate, lostUpdate},
	{"effects of one lease the other way round", OrderBroken, ofEffect(swap)},
	{"half of a pair", Torn, ofEffect(func(m *tampered, i int, e *Effect) bool {
		if !m.quiet(i) || m.single(e.Register) {
			return false
		}
		m.unmake(i)
		return true
	})},
}

// after is a call on the effect's resource with a higher token that ended after the effect's write had begun.
func (m *tampered) after(e *Effect, which func(*history.Op) bool) *history.Op {
	for i := range m.Ops {
		op := &m.Ops[i]
		if op.Resource == e.Resource && op.Token > e.Token && op.End > m.op(e.Value).Begin && which(op) {
			return op
		}
	}
	return nil
}

// lostUpdate inserts an effectless write before a newer holder's first write, and removes that holder's reads.
func lostUpdate(m *tampered, i int) bool {
	if i >= len(m.Effects) {
		return false
	}
	e, next := m.Effects[i], m.next(i)
	if next == nil || !m.single(e.Register) || m.op(next.Value).Based[e.Register] != e.Value {
		return false
	}
	at := slices.IndexFunc(m.Ops, func(op history.Op) bool {
		_, its := op.Based[e.Register]
		return its && op.Token >= e.Token && op.Token < next.Token && op.Outcome == history.Unknown &&
			!slices.ContainsFunc(m.Effects, func(e Effect) bool { return e.Value == op.ID })
	})
	if at < 0 {
		return false
	}
	m.insert(i, &m.Ops[at])
	token := next.Token
	m.Ops = slices.DeleteFunc(m.Ops, func(op history.Op) bool {
		return op.Under && op.Token == token && op.Register == e.Register
	})
	return true
}

// swap exchanges two effects of one lease, and adapts the reads to the new order.
func swap(m *tampered, i int, e *Effect) bool {
	next := m.next(i)
	if next == nil || next.Token != e.Token || m.used[e.Value] || !m.single(e.Register) {
		return false
	}
	a, b := m.op(e.Value), m.op(next.Value)
	if a.Outcome != history.Done || a.End >= b.Begin {
		return false
	}
	for k := range m.Ops {
		if m.Ops[k].Saw == b.ID {
			m.Ops[k].Saw = a.ID
		}
		for register, value := range m.Ops[k].Based {
			if value == b.ID {
				m.Ops[k].Based = maps.Clone(m.Ops[k].Based)
				m.Ops[k].Based[register] = a.ID
			}
		}
	}
	for k := range m.Effects {
		if m.Effects[k].Overwrote == b.ID {
			m.Effects[k].Overwrote = a.ID
		}
	}
	e.Value, next.Value, next.Overwrote = b.ID, a.ID, b.ID
	return true
}
