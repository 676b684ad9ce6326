package judge

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/fencegate/fencegate/robustness/history"
)

// lostWrites reports acknowledged writes without an effect, and effects that were undone.
func lostWrites(res *resource) []Finding {
	var found []Finding
	for _, reg := range res.registers {
		for _, op := range reg.writes {
			if op.Outcome != history.Done || reg.stands(op.ID) || standsElsewhere(res, op) {
				continue
			}
			switch {
			case reg.wasLost(op.ID) && res.async:
				res.excused["lost write"]++
			case reg.wasLost(op.ID):
				found = append(found, tell(LostWrite, reg.name, fmt.Sprintf(
					"%s was acknowledged at %s, and a failover to a synchronous standby lost it", op.ID, res.at(op.End)), op))
			default:
				found = append(found, tell(LostWrite, reg.name, fmt.Sprintf(
					"%s with token %d was acknowledged at %s and has no effect", op.ID, op.Token, res.at(op.End)), op))
			}
		}
		found = append(found, undone(res, reg)...)
	}
	return found
}

// standsElsewhere reports that the write has an effect on another of its registers: then it is torn, not lost.
func standsElsewhere(res *resource, op *history.Op) bool {
	return slices.ContainsFunc(res.registers, func(reg *register) bool {
		_, its := op.Based[reg.name]
		return its && reg.stands(op.ID)
	})
}

// undone reports effects that the next effect did not overwrite.
func undone(res *resource, reg *register) []Finding {
	var found []Finding
	before := ""
	for _, e := range reg.chain {
		if e.Overwrote != before {
			found = append(found, tell(LostWrite, reg.name, fmt.Sprintf(
				"%s (effect %d) overwrote %s, but the effect before it set %s", e.Value, e.Seq, orNothing(e.Overwrote), orNothing(before)),
				res.writes[e.Value], res.writes[before], res.writes[e.Overwrote]))
		}
		before = e.Value
	}
	return found
}

// orNothing formats a value for a message.
func orNothing(value string) string {
	if value == "" {
		return "nothing"
	}
	return value
}

// doneAnyway reports writes with an effect whose caller was answered that nothing was done. For an effect that a
// failover took back, only an answer before the failover counts: a later one is true.
func doneAnyway(res *resource) []Finding {
	kinds := map[history.Outcome]Kind{history.Refused: RefusedButDone, history.Failed: FailedButDone}
	var found []Finding
	for _, reg := range res.registers {
		for _, op := range reg.writes {
			kind, ok := kinds[op.Outcome]
			if !ok || !reg.stands(op.ID) && !reg.lostAfter(op.ID, op.End, res.losses) {
				continue
			}
			found = append(found, tell(kind, reg.name, fmt.Sprintf(
				"%s with token %d received %s (%s) at %s and has an effect",
				op.ID, op.Token, op.Outcome, op.Code, res.at(op.End)), op))
		}
	}
	return found
}

// doneTwice reports writes with two effects on one register. An effect
// that a failover took back does not count besides one that stands.
func doneTwice(res *resource) []Finding {
	var found []Finding
	for _, reg := range res.registers {
		for _, value := range slices.Sorted(maps.Keys(reg.at)) {
			p := reg.at[value]
			if value == "" || len(p.stands) < 2 {
				continue
			}
			found = append(found, tell(DoneTwice, reg.name, fmt.Sprintf("%s has %d effects, at %d and %d of the order",
				value, len(p.stands), p.stands[0], p.stands[1]), res.writes[value]))
		}
	}
	return found
}

// fromNowhere reports effects that no call wrote, or that differ from the call's write, and values that no call wrote.
func fromNowhere(res *resource) []Finding {
	var found []Finding
	for _, reg := range res.registers {
		for _, e := range reg.chain {
			if what := strange(res, reg, e); what != "" {
				found = append(found, tell(FromNowhere, reg.name,
					fmt.Sprintf("effect %d, %s with token %d, %s", e.Seq, orNothing(e.Value), e.Token, what), res.writes[e.Value]))
			}
		}
		for _, e := range reg.lost {
			if what := strange(res, reg, e.Effect); what != "" {
				found = append(found, tell(FromNowhere, reg.name,
					fmt.Sprintf("effect %d, %s with token %d, which a failover took back, %s", e.Seq, orNothing(e.Value), e.Token, what),
					res.writes[e.Value]))
			}
		}
		for _, op := range reg.reads {
			if op.Saw != "" && res.wrote(reg, op.Saw) == nil {
				found = append(found, tell(FromNowhere, reg.name,
					fmt.Sprintf("%s saw %s at %s, which no call wrote there", op.ID, op.Saw, res.at(op.End)), op))
			}
		}
	}
	return found
}

// strange returns what is wrong with a single effect.
func strange(res *resource, reg *register, e Effect) string {
	op := res.wrote(reg, e.Value)
	switch {
	case op == nil:
		return "is of no call"
	case e.Token == 0:
		return "was made without a lease"
	case op.Token != 0 && op.Token != e.Token:
		return fmt.Sprintf("is of a call under token %d", op.Token)
	case e.Resource != res.name:
		return fmt.Sprintf("was made under the resource %q", e.Resource)
	}
	return ""
}

// torn reports writes of several registers that changed only some, and rows whose file is missing.
func torn(res *resource) []Finding {
	var found []Finding
	for _, op := range res.ops {
		if op.Action != history.Write || len(op.Based) < 2 {
			continue
		}
		var with, without string
		lost := 0
		for _, reg := range res.registers {
			if _, its := op.Based[reg.name]; !its {
				continue
			}
			if reg.wasLost(op.ID) {
				lost++
			}
			if reg.stands(op.ID) {
				with = reg.name
			} else {
				without = reg.name
			}
		}
		switch {
		case with != "" && without != "":
			found = append(found, tell(Torn, without, fmt.Sprintf(
				"%s (%s) has an effect on %s and none on %s", op.ID, op.Outcome, with, without), op))
		case lost > 0 && lost < len(op.Based):
			found = append(found, tell(Torn, without, fmt.Sprintf(
				"%s (%s) had an effect on one register only, on the primary that failed", op.ID, op.Outcome), op))
		}
	}
	return append(found, rowsWithoutFile(res)...)
}

// rowsWithoutFile reports rows whose value was written together with a file that the auditor did not find. Effects under
// a lower token than the auditor's precede its reads, unless a failover set back the fence.
func rowsWithoutFile(res *resource) []Finding {
	gone := map[string]*history.Op{}
	for _, reg := range res.registers {
		if read := reg.audited(); read != nil && read.Saw == "" && !res.fallen(read.Token) {
			gone[reg.name] = read
		}
	}
	var found []Finding
	for _, reg := range res.registers {
		if len(reg.chain) == 0 || !strings.HasPrefix(reg.name, "row:") {
			continue
		}
		last := reg.chain[len(reg.chain)-1]
		op := res.wrote(reg, last.Value)
		if op == nil {
			continue
		}
		for _, file := range slices.Sorted(maps.Keys(op.Based)) {
			if read := gone[file]; read != nil && last.Token < read.Token {
				found = append(found, tell(Torn, reg.name, fmt.Sprintf("%s names %s, which is not there", op.ID, file), op, read))
			}
		}
	}
	return found
}

// audited is the auditor's last read of the register; nil if there is none.
func (r *register) audited() *history.Op {
	var last *history.Op
	for _, op := range r.reads {
		if op.Client == auditor && !strings.HasPrefix(op.Surface, probe) && (last == nil || op.End > last.End) {
			last = op
		}
	}
	return last
}
