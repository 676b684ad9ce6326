package judge

import (
	"fmt"
	"math"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/fencegate/fencegate/robustness/history"
)

// step is a call in the model of a register.
type step struct {
	write bool
	value string
}

// model is a register that holds one value. It ignores leases and the triggers' order.
var model = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		s := input.(step)
		if s.write {
			return true, s.value
		}
		return state == s.value, state
	},
	Equal: func(a, b any) bool { return a == b },
}

// notLinearizable searches an order of the calls of each register that explains every answer. It runs last, and only
// for registers without other findings. It returns the number of calls for which there was no time.
func notLinearizable(res *resource, guilty map[string]bool, left func() time.Duration) (found []Finding, over int) {
	for _, reg := range res.registers {
		if guilty[reg.name] {
			continue
		}
		calls, ok := reg.calls(res)
		if len(calls) == 0 {
			continue
		}
		budget := left()
		if !ok || budget <= 0 {
			over += len(calls)
			continue
		}
		switch porcupine.CheckOperationsTimeout(model, calls, budget) {
		case porcupine.Illegal:
			found = append(found, tell(NotLinearizable, reg.name,
				fmt.Sprintf("no order of its %d calls explains what they saw", len(calls)), reg.culprits()...))
		case porcupine.Unknown:
			over += len(calls)
		case porcupine.Ok:
		}
	}
	return found, over
}

// culprits finds a read of a value whose write had not begun: the shortest explanation, if there is one.
func (r *register) culprits() []*history.Op {
	began := map[string]*history.Op{}
	for _, op := range r.writes {
		began[op.ID] = op
	}
	for _, op := range r.reads {
		if w := began[op.Saw]; w != nil && op.End < w.Begin {
			return []*history.Op{op, w}
		}
	}
	return nil
}

// calls is the register's history for the model. A write of unknown outcome that no read saw is omitted: it could come
// last. One that was seen took effect before the end of the first read that saw it. A failover that lost writes is
// modelled as one more write, of the value before them. ok is false if a lost value also stands, since then there is no
// such model.
func (r *register) calls(res *resource) (calls []porcupine.Operation, ok bool) {
	seen := map[string]int64{}
	for _, op := range r.reads {
		if end, ok := seen[op.Saw]; !ok || op.End < end {
			seen[op.Saw] = op.End
		}
		calls = append(calls, porcupine.Operation{
			ClientId: op.Client, Input: step{value: op.Saw}, Call: op.Begin, Return: op.End,
		})
	}
	for _, op := range r.writes {
		end := op.End
		if op.Outcome != history.Done {
			first, was := seen[op.ID]
			if !was || op.Outcome == history.Refused || op.Outcome == history.Failed {
				continue
			}
			end = max(first, op.Begin)
		}
		calls = append(calls, porcupine.Operation{
			ClientId: op.Client, Input: step{true, op.ID}, Call: op.Begin, Return: end,
		})
	}
	if !res.async {
		return calls, true
	}
	for i, e := range r.lost {
		if r.stands(e.Value) {
			return calls, false
		}
		if i > 0 && r.lost[i-1].loss == e.loss {
			continue
		}
		value, loss := "", res.losses[e.loss]
		if e.place.main > 0 {
			value = r.chain[e.place.main-1].Value
		}
		calls = append(calls, porcupine.Operation{
			ClientId: math.MaxInt32, Input: step{true, value}, Call: loss.From, Return: loss.To,
		})
	}
	return calls, true
}
