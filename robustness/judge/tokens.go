package judge

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"github.com/fencegate/fencegate/robustness/history"
)

// stale reports effects under a token after a newer holder could rely on their absence: tokens fall in the order of
// effects, a newer holder had read, or a newer lease had been granted when the write began, or when its trigger ran.
func stale(res *resource) []Finding {
	var found []Finding
	sure := newestBy(res.granted, func(op *history.Op) bool { return !res.fallen(op.Token) })
	fell := newestBy(res.granted, func(op *history.Op) bool { return res.fallen(op.Token) })
	for _, reg := range res.registers {
		readers := readBefore(res, reg)
		var highest Effect
		for i, e := range reg.chain {
			op := res.wrote(reg, e.Value)
			since, came := res.since(op, e)
			var why string
			var other *history.Op
			switch {
			case e.Token == 0: // from nowhere
			case e.Token < highest.Token:
				why = fmt.Sprintf("came after %s with token %d in the order of effects", highest.Value, highest.Token)
				other = res.writes[highest.Value]
			case readers.sure[i] != nil && e.Token < readers.sure[i].Token:
				other = readers.sure[i]
				why = fmt.Sprintf("came after %s had read under token %d until %s", other.ID, other.Token, res.at(other.End))
			default:
				if other = sure.before(since); over(other, e.Token) {
					why = fmt.Sprintf("%s at %s, when token %d had been granted at %s",
						came, res.at(since), other.Token, res.at(other.End))
				}
			}
			switch {
			case why != "":
				found = append(found, tell(Stale, reg.name,
					fmt.Sprintf("effect %d, %s with token %d, %s", e.Seq, e.Value, e.Token, why), op, other))
			case over(readers.fell[i], e.Token), over(fell.before(since), e.Token):
				res.excused["stale write under a fence that fell"]++
			}
			if e.Token > highest.Token {
				highest = e
			}
		}
		found = append(found, staleAmongLost(res, reg)...)
	}
	return found
}

// since is the earliest moment at which an effect may have been made, and what happened then: its write began, or its
// trigger ran. A grant is returned once no transaction under an older one can commit any more, and a trigger runs before
// its transaction commits. So an effect that came after a higher grant is stale, also if its write began before.
func (r *resource) since(op *history.Op, e Effect) (moment int64, what string) {
	if op == nil {
		return 0, ""
	}
	if ran := e.Wall - r.ahead; r.ahead != 0 && e.Wall != 0 && ran > op.Begin {
		return ran, "came"
	}
	return op.Begin, "began"
}

func over(op *history.Op, token int64) bool { return op != nil && op.Token > token }

// staleAmongLost reports effects whose tokens fell on a failed primary.
func staleAmongLost(res *resource, reg *register) []Finding {
	var found []Finding
	for i := 1; i < len(reg.lost); i++ {
		a, b := reg.lost[i-1], reg.lost[i]
		if a.loss == b.loss && b.Token < a.Token {
			found = append(found, tell(Stale, reg.name, fmt.Sprintf(
				"effect %d, %s with token %d, came after %s with token %d on the primary that failed",
				b.Seq, b.Value, b.Token, a.Value, a.Token),
				res.writes[b.Value], res.writes[a.Value]))
		}
	}
	return found
}

// readers holds, for each index of a register's order, the earlier read with the highest token.
type readers struct{ sure, fell []*history.Op }

func readBefore(res *resource, reg *register) readers {
	n := len(reg.chain)
	r := readers{make([]*history.Op, n+1), make([]*history.Op, n+1)}
	for _, op := range reg.reads {
		s, ok := reg.sighted(op.Saw, op.Begin, res.losses, res.async)
		if !op.Under || !ok {
			continue
		}
		list := r.sure
		if res.fallen(op.Token) {
			list = r.fell
		}
		if at := list[s.last.main]; at == nil || at.Token < op.Token {
			list[s.last.main] = op
		}
	}
	for i := 1; i <= n; i++ {
		for _, list := range [][]*history.Op{r.sure, r.fell} {
			if list[i-1] != nil && !over(list[i], list[i-1].Token) {
				list[i] = list[i-1]
			}
		}
	}
	return r
}

// newest finds the call with the highest token among those that had ended at a moment.
type newest struct {
	ends []int64
	ops  []*history.Op
}

// newestBy takes calls ordered by their ends.
func newestBy(ops []*history.Op, which func(*history.Op) bool) newest {
	var n newest
	for _, op := range ops {
		if !which(op) {
			continue
		}
		if last := len(n.ops) - 1; last >= 0 && n.ops[last].Token > op.Token {
			op = n.ops[last]
			n.ends = append(n.ends, max(n.ends[last], op.End))
			n.ops = append(n.ops, op)
			continue
		}
		n.ends = append(n.ends, op.End)
		n.ops = append(n.ops, op)
	}
	return n
}

// before returns the call with the highest token that had ended before a moment.
func (n newest) before(moment int64) *history.Op {
	i := sort.Search(len(n.ends), func(i int) bool { return n.ends[i] >= moment })
	if i == 0 {
		return nil
	}
	return n.ops[i-1]
}

// tokenTwice reports tokens that were granted twice.
func tokenTwice(res *resource) []Finding {
	var found []Finding
	first := map[int64]*history.Op{}
	for _, op := range res.granted {
		other := first[op.Token]
		switch {
		case other == nil:
			first[op.Token] = op
		case res.fallen(op.Token):
			res.excused["token given again under a fence that fell"]++
		default:
			found = append(found, tell(TokenTwice, res.name, fmt.Sprintf("token %d was granted at %s (%s) and at %s (%s)",
				op.Token, res.at(other.End), other.ID, res.at(op.End), op.ID), op, other))
		}
	}
	return found
}

// tokenFalls reports tokens below one that was granted before they were requested.
func tokenFalls(res *resource) []Finding {
	var found []Finding
	sure := newestBy(res.granted, func(op *history.Op) bool { return !res.fallen(op.Token) })
	fell := newestBy(res.granted, func(op *history.Op) bool { return res.fallen(op.Token) })
	for _, op := range res.granted {
		switch other := sure.before(op.Begin); {
		case over(other, op.Token):
			found = append(found, tell(TokenFalls, res.name, fmt.Sprintf(
				"%s asked at %s and got token %d, but %s had got %d at %s",
				op.ID, res.at(op.Begin), op.Token, other.ID, other.Token, res.at(other.End)), op, other))
		case over(fell.before(op.Begin), op.Token):
			res.excused["token below one whose fence fell"]++
		}
	}
	return found
}

// revoked reports effects under a token below a revocation that was done before their writes began, or their triggers ran.
func revoked(res *resource) []Finding {
	var done []*history.Op
	for _, op := range res.ops {
		if op.Action == history.Revoke && op.Outcome == history.Done {
			done = append(done, op)
		}
	}
	slices.SortStableFunc(done, func(a, b *history.Op) int { return cmp.Compare(a.End, b.End) })
	sure := newestBy(done, func(op *history.Op) bool { return !res.fallen(op.Token) })
	var found []Finding
	for _, reg := range res.registers {
		for _, e := range reg.chain {
			op := res.wrote(reg, e.Value)
			since, came := res.since(op, e)
			if by := sure.before(since); over(by, e.Token) {
				found = append(found, tell(Revoked, reg.name, fmt.Sprintf(
					"effect %d, %s with token %d, %s at %s, when %s had revoked all below %d at %s",
					e.Seq, e.Value, e.Token, came, res.at(since), by.ID, by.Token, res.at(by.End)), op, by))
			}
		}
	}
	return found
}
