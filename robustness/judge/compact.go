package judge

import "github.com/fencegate/fencegate/robustness/history"

// compact removes calls that no later write can be judged by. It keeps every write and every call without an answer; of
// the acquisitions and the reads it keeps those with the highest tokens, and the last read of each register.
func (g *group) compact() {
	keep := map[string]*history.Op{}
	best := func(key string, op *history.Op, better bool) {
		if keep[key] == nil || better {
			keep[key] = op
		}
	}
	ops := map[string]*history.Op{}
	for id, op := range g.ops {
		switch {
		case op.Action == history.Write, op.Action == history.Revoke, op.Outcome == history.Begun:
			ops[id] = op
		case op.Outcome != history.Done:
		case op.Action == history.Acquire:
			best("acquire", op, keep["acquire"] != nil && op.Token > keep["acquire"].Token)
		case op.Action == history.Read && op.Wrong == "":
			last := "read " + op.Register
			best(last, op, keep[last] != nil && op.End > keep[last].End)
			if under := "under " + op.Register; op.Under {
				best(under, op, keep[under] != nil && op.Token > keep[under].Token)
			}
		}
	}
	for _, op := range keep {
		ops[op.ID] = op
	}
	g.ops = ops
}
