package judge

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

// lease is a lease from its acquisition to the end of its validity for its holder.
type lease struct {
	from, to int64
	op       *history.Op // the acquisition
}

// overlap sums up a resource's leases that began during the validity of an older one.
type overlap struct {
	count         int
	longest       time.Duration
	older, during lease // of the longest
}

func overlaps(res *resource) (o overlap) {
	var believed lease
	for i, l := range leases(res) {
		if i > 0 && l.from < believed.to {
			o.count++
			if d := time.Duration(min(believed.to, l.to) - l.from); d > o.longest {
				o.longest, o.older, o.during = d, believed, l
			}
		}
		if l.to > believed.to {
			believed = l
		}
	}
	return o
}

// twoHolders reports an overlap if no node's clock was set: then locks exclude. With clock jumps, the fence protects.
func (o overlap) twoHolders(res *resource) Finding {
	return tell(Overlap, res.name, fmt.Sprintf("%s got token %d at %s, and %s believed in token %d until %s, %v longer; this happened %d times",
		o.during.op.ID, o.during.op.Token, res.at(o.during.from), o.older.op.ID, o.older.op.Token, res.at(o.older.to),
		o.longest, o.count), o.during.op, o.older.op)
}

// leaseLost is the code of a renewal that is refused because the lease has ended.
const leaseLost = "lease_lost"

// leases returns the granted leases, ordered by beginning. Each lasts until it was released or revoked, until its
// holder received an error that it is lost, or until its last deadline.
func leases(res *resource) []lease {
	byToken := map[int64]*lease{}
	for _, op := range res.granted {
		if byToken[op.Token] == nil {
			byToken[op.Token] = &lease{op.End, op.Until, op}
		}
	}
	for _, op := range res.ops { // ordered by their beginnings
		l := byToken[op.Token]
		switch {
		case l == nil || op.Begin > l.to:
		case op.Action == history.Renew && op.Outcome == history.Done:
			l.to = max(l.to, op.Until)
		case op.Action == history.Renew && op.Outcome == history.Refused && op.Code == leaseLost:
			l.to = min(l.to, op.End) // its holder stops with the error: a failover's fences ended it
		case op.Action == history.Release:
			l.to = op.Begin
		}
	}
	for _, op := range res.ops { // an operator revokes a lease
		for _, l := range byToken {
			if op.Action == history.Revoke && op.Outcome != history.Refused && l.from < op.End {
				l.to = min(l.to, op.Begin)
			}
		}
	}
	var sorted []lease
	for _, l := range byToken {
		if l.to > l.from {
			sorted = append(sorted, *l)
		}
	}
	slices.SortFunc(sorted, func(a, b lease) int { return cmp.Compare(a.from, b.from) })
	return sorted
}
