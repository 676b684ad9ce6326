package judge

import (
	"fmt"
	"slices"

	"github.com/fencegate/fencegate/robustness/history"
)

// lostUpdates reports writes that overwrote a value that their holder
// had not read. Writes of the same lease in between do not count.
func lostUpdates(res *resource) []Finding {
	var found []Finding
	for _, reg := range res.registers {
		for i, e := range reg.chain {
			op := res.wrote(reg, e.Value)
			if op == nil || reg.of(e.Value).stands[0] != i+1 {
				continue // from nowhere, or done twice
			}
			based := op.Based[reg.name]
			other, lost := between(reg, based, i)
			switch {
			case (lost || other != nil) && res.old[source{reg.name, e.Token, based}]:
				res.excused["write computed from an old primary"]++
			case lost && res.async && reg.wasLost(based):
				res.excused["write computed from a lost one"]++
			case lost:
				found = append(found, tell(LostUpdate, reg.name, fmt.Sprintf(
					"%s with token %d was computed from %s, which has no effect, and overwrote %s",
					e.Value, e.Token, orNothing(based), orNothing(e.Overwrote)), op, res.writes[based]))
			case other != nil && other.Token < e.Token && res.fallen(e.Token):
				res.excused["lost update under a fence that fell"]++
			case other != nil:
				found = append(found, tell(LostUpdate, reg.name, fmt.Sprintf(
					"%s with token %d was computed from %s and overwrote %s with token %d",
					e.Value, e.Token, orNothing(based), other.Value, other.Token), op, res.writes[other.Value]))
			}
		}
	}
	return found
}

// between is the last effect of another lease between the value's effect and the one at index i. lost means that no
// effect of the value stands.
func between(reg *register, value string, i int) (other *Effect, lost bool) {
	p := reg.at[value]
	if p == nil || len(p.stands) == 0 {
		return nil, true
	}
	for at := i - 1; at >= 0 && !slices.Contains(p.stands, at+1); at-- {
		if reg.chain[at].Token != reg.chain[i].Token && other == nil {
			other = &reg.chain[at]
		}
	}
	if p.stands[0] > i {
		return nil, false // it had read a later value: orderBroken reports that
	}
	return other, false
}

// orderBroken reports writes that are ordered before a value that existed when they began.
func orderBroken(res *resource) []Finding {
	var found []Finding
	for _, reg := range res.registers {
		reg.floors(reg.writes, res, func(op *history.Op, floor bound) {
			s, ok := reg.sighted(op.ID, op.Begin, res.losses, res.async)
			if ok && s.last.before(floor.place) {
				found = append(found, tell(OrderBroken, reg.name, fmt.Sprintf(
					"%s began at %s and comes before what %s at %s (positions %s and %s)", op.ID, res.at(op.Begin),
					did(floor.by), res.at(floor.by.End), s.last, floor.place), op, floor.by))
			}
		})
	}
	return found
}

// staleReads reports reads that saw an older value than the one that was certain when they began.
func staleReads(res *resource) []Finding {
	var found []Finding
	for _, reg := range res.registers {
		reg.floors(reg.reads, res, func(op *history.Op, floor bound) {
			s, ok := reg.sighted(op.Saw, op.Begin, res.losses, res.async)
			if ok && s.last.before(floor.place) {
				found = append(found, tell(StaleRead, reg.name, fmt.Sprintf(
					"%s began at %s and saw %s, older than what %s at %s (positions %s and %s)",
					op.ID, res.at(op.Begin), orNothing(op.Saw), did(floor.by), res.at(floor.by.End), s.last, floor.place), op, floor.by))
			}
		})
	}
	return found
}

func (p place) String() string {
	if p.off == 0 {
		return fmt.Sprint(p.main)
	}
	return fmt.Sprintf("%d+%d lost", p.main, p.off)
}

// did describes the call that proves a position.
func did(op *history.Op) string {
	if op.Action == history.Read {
		return op.ID + " saw"
	}
	return op.ID + " had written"
}

// phantomReads reports reads of a value that was refused, that failed, or that has no effect.
func phantomReads(res *resource) []Finding {
	var found []Finding
	for _, reg := range res.registers {
		for _, op := range reg.reads {
			write := res.wrote(reg, op.Saw)
			if op.Saw == "" || write == nil {
				continue
			}
			why := ""
			s, ok := reg.sighted(op.Saw, op.Begin, res.losses, res.async)
			switch {
			case write.Outcome == history.Refused || write.Outcome == history.Failed:
				why = fmt.Sprintf("which received %s (%s)", write.Outcome, write.Code)
			case !ok:
				why = "which has no effect"
			case s.loss >= 0:
				res.excused["read of a lost write"]++
			}
			if why != "" {
				found = append(found, tell(PhantomRead, reg.name,
					fmt.Sprintf("%s saw %s at %s, %s", op.ID, op.Saw, res.at(op.End), why), op, write))
			}
		}
	}
	return found
}

// wrongBytes reports reads of bytes that no client wrote, or of a part of an object.
func wrongBytes(res *resource) []Finding {
	var found []Finding
	for _, op := range res.ops {
		if op.Wrong != "" {
			where := op.Register
			if where == "" {
				where = res.name
			}
			found = append(found, tell(WrongBytes, where,
				fmt.Sprintf("%s at %s: %s", op.ID, res.at(op.End), op.Wrong), op, res.writes[op.Saw]))
		}
	}
	return found
}

// unexplained is the S3 port's code for unexpected errors, for example an object whose bytes are missing. For an
// unavailable server it has another code.
const unexplained = "InternalError"

// unreadable reports reads of an object that is listed and whose bytes are missing.
func unreadable(res *resource) []Finding {
	var found []Finding
	for _, op := range res.ops {
		if op.Action == history.Read && op.Outcome != history.Done && op.Code == unexplained && !res.outdated(op) {
			found = append(found, tell(Unreadable, op.Register,
				fmt.Sprintf("%s at %s: %s", op.ID, res.at(op.End), op.Error), op))
		}
	}
	return found
}
