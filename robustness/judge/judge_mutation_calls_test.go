package judge

import (
	"fmt"
	"slices"

	"github.com/fencegate/fencegate/robustness/history"
)

var callMutations = []mutation{
	{"an old value", StaleRead, ofOp(func(m *tampered, op *history.Op) bool {
		if !auditRead(op) {
			return false
		}
		op.Saw, op.Under = m.Effects[m.chain(op.Register)[2]].Value, false
		return true
	})},
	{"a refused value", PhantomRead, phantom(history.Refused)},
	{"a value without an effect", PhantomRead, phantom(history.Unknown)},
	{"half of an object", WrongBytes, ofOp(func(_ *tampered, op *history.Op) bool {
		op.Wrong = "65536 of 1048576 bytes"
		return auditRead(op)
	})},
	{"an object without its bytes", Unreadable, ofOp(func(_ *tampered, op *history.Op) bool {
		op.Outcome, op.Code = history.Failed, unexplained
		return auditRead(op)
	})},
	{"a token again", TokenTwice, ofOp(func(m *tampered, op *history.Op) bool {
		other := *op
		other.ID, other.Client = "c99-1", 99
		m.Ops = append(m.Ops, other)
		return op.Action == history.Acquire && op.Outcome == history.Done
	})},
	{"a token below one of before", TokenFalls, ofOp(func(m *tampered, op *history.Op) bool {
		other := *op
		other.ID, other.Client, other.Token, other.Begin, other.End = "c99-1", 99, op.Token-1, op.End+1, op.End+2
		m.Ops = append(m.Ops, other)
		return op.Action == history.Acquire && op.Outcome == history.Done &&
			!slices.ContainsFunc(m.Ops, func(o history.Op) bool {
				return o.Resource == op.Resource && o.Action == history.Acquire && o.Token == op.Token-1 && o.ID != other.ID
			})
	})},
	{"a write after a revocation", Revoked, ofEffect(func(m *tampered, _ int, e *Effect) bool {
		op := m.op(e.Value)
		m.Ops = append(m.Ops, history.Op{
			ID: "c99-1", Client: 99, Surface: "revoke", Action: history.Revoke, Outcome: history.Done, Resource: op.Resource,
			Token: e.Token + 1, Begin: op.Begin - 2, End: op.Begin - 1,
		})
		return true
	})},
	{"a value before it was written", NotLinearizable, ofEffect(func(m *tampered, _ int, e *Effect) bool {
		op := m.op(e.Value)
		m.Ops = append(m.Ops, history.Op{
			ID: "c99-1", Client: 99, Surface: "library", Action: history.Read, Outcome: history.Done, Register: e.Register,
			Resource: e.Resource, Saw: e.Value, Begin: op.Begin - 2, End: op.Begin - 1,
		})
		return quietUntil(m, op)
	})},
	{"an answer after its time", Late, ofOp(func(_ *tampered, op *history.Op) bool {
		op.Limit = op.End - grace - 1
		return op.End != 0
	})},
	{"no answer at rest", Late, ofOp(func(m *tampered, op *history.Op) bool {
		m.Stops = nil
		ok := op.Outcome == history.Unknown && op.Action == history.Write
		for i, other := range m.Ops { // calls of killed clients have none either
			if other.Outcome == history.Begun {
				m.Ops[i].Outcome, m.Ops[i].End = history.Unknown, other.Begin+1
			}
		}
		op.Outcome, op.End, op.Limit = history.Begun, 0, 0
		m.Resting = map[int]int64{op.Client: m.Now}
		return ok
	})},
	{"held by a lease that was released", NotFree, ofOp(func(m *tampered, op *history.Op) bool {
		m.Ops = append(m.Ops, history.Op{
			ID: "c99-1", Client: 99, Surface: "library", Action: history.Acquire, Outcome: history.Refused, Code: "held",
			HeldBy: op.Token, Resource: op.Resource, Begin: op.End + 1, End: op.End + 2,
		})
		return op.Action == history.Release && op.Outcome == history.Done
	})},
	{"a lease that never ends", NotFree, ofOp(func(m *tampered, op *history.Op) bool {
		ok := op.Client == auditor && op.Action == history.Acquire && op.Outcome == history.Done
		op.Outcome, op.Code, m.Now = history.Refused, "held", m.Now+recovery*2
		return ok
	})},
	{"a probe that comes too late", NotRecovered, probed(recovery + 1)},
	{"a size that grows", Leak, func(m *tampered, i int) bool {
		m.Sizes = map[string][]float64{
			"gateway 1#1 goroutines": {50, 40, 60, 30, 91, 92}, "gateway 2#1 goroutines": {50, 40, 60, 30, 95, 69},
		}
		m.Slack = map[string]float64{"goroutines": 30}
		return i == 0
	}},
}

func phantom(outcome history.Outcome) func(*tampered, int) bool {
	return ofOp(func(m *tampered, op *history.Op) bool {
		_, its := op.Based["row:"+op.Resource]
		if op.Outcome != outcome || op.Action != history.Write || !its ||
			slices.ContainsFunc(m.Effects, func(e Effect) bool { return e.Value == op.ID }) {
			return false
		}
		at := slices.IndexFunc(m.Ops, func(o history.Op) bool { return auditRead(&o) && o.Register == "row:"+op.Resource })
		m.Ops[at].Saw = op.ID
		return true
	})
}

// quietUntil reports that the register's calls around the beginning of op do not determine the order.
func quietUntil(m *tampered, op *history.Op) bool {
	end := op.End
	if end == 0 {
		end = op.Begin + 10*ms
	}
	return !slices.ContainsFunc(m.Ops, func(o history.Op) bool {
		return (o.Action == history.Read || o.Action == history.Write) &&
			o.Client != 99 && o.Resource == op.Resource && o.ID != op.ID &&
			o.Begin >= op.Begin-2 && o.Begin <= end
	})
}

func probed(after int64) func(*tampered, int) bool {
	return func(m *tampered, i int) bool {
		healed := m.Healed[1]
		m.Now += 2 * recovery
		for k, action := range []history.Action{history.Acquire, history.Release} {
			m.Ops = append(m.Ops, history.Op{
				ID: fmt.Sprintf("p-%d", k), Client: 50, Round: 1, Surface: "probe s3-small 2", Action: action,
				Outcome:  history.Done,
				Resource: "robust/p1-1", Token: 1, Begin: healed + 1, End: healed + after + int64(k),
			})
		}
		return i == 0
	}
}
