package judge

import (
	"fmt"
	"math"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/fencegate/fencegate/robustness/history"
)

// step is a call as the model of a register sees it.
type step struct {
	write bool
	value string
}

// model is a register that holds one value. It knows nothing of leases, and nothing of the triggers' order.
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

// notLinearizable searches an order of the calls of each register that explains every answer. It is asked last, and
// only about registers of which no other check has a finding. It returns how many calls it had no time for.
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

// culprits are the reads that saw what had not been asked for: the shortest explanation, where it is one.
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

// calls are the register's history for the model. A write without a clear answer that was never seen may be left out:
// it could always come last. One that was seen came before the end of the first read that saw it. A failover that lost
// writes is one more write, of the value before them. Not ok: a value that was lost and stands, for which there is no
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
