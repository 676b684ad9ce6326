package judge

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

// The bounds of time. What the machine lost does not count in them: see package machine.
const (
	grace    = int64(10 * time.Second) // on top of a call's own deadline
	recovery = int64(30 * time.Second) // from the end of the last fault until everything must work
	auditor  = 0                       // the auditor's client number
	everyone = -1                      // the client of a span that stopped all clients
	probe    = "probe "                // prefix of a probe's surface
)

// notFree reports resources that were released or expired and could not be acquired.
func notFree(res *resource) []Finding {
	released := map[int64]*history.Op{}
	for _, op := range res.ops {
		if op.Action != history.Release || op.Outcome != history.Done {
			continue
		}
		if r := released[op.Token]; r == nil || op.End < r.End {
			released[op.Token] = op
		}
	}
	var found []Finding
	for _, op := range res.ops {
		if op.Action != history.Acquire || op.Outcome != history.Refused || op.HeldBy == 0 {
			continue
		}
		r := released[op.HeldBy]
		switch {
		case r == nil || r.End >= op.Begin || res.nodeAway(r.Begin, op.End):
		case op.Begin <= r.End+locked && res.nodeSlow(r.Begin, r.End+nodeWaits):
			res.slow[op.ID] = NotFree
		default:
			found = append(found, tell(NotFree, res.name, fmt.Sprintf(
				"%s was refused at %s because token %d holds the lease, which %s had released at %s",
				op.ID, res.at(op.End), op.HeldBy, r.ID, res.at(r.End)), op, r))
		}
	}
	return append(found, auditorsWait(res)...)
}

// nodesReturn is how long after a fault a Redis node may not count yet: the longest lease, plus its admission.
const nodesReturn = int64(6 * time.Second)

// nodeAway reports that a fault affected a Redis node. A release is done when a majority has it. So if one node can't
// be reached, a concurrent acquisition may see the lease on a node that has not received the release yet.
func (r *resource) nodeAway(from, to int64) bool {
	return slices.ContainsFunc(r.outages, func(s history.Span) bool {
		return strings.Contains(s.What, "redis") && s.From <= to && s.To+nodesReturn >= from
	})
}

const (
	// nodeWaits is what a gateway waits for a node: serve's --node-timeout.
	nodeWaits = int64(250 * time.Millisecond)
	// nodeTime is less.
	nodeTime = nodeWaits / 2
	// locked is how long a lock may stay on a node that missed its release: more than the longest lease.
	locked = int64(4 * time.Second)
)

// nodeSlow reports that one of several nodes may have missed a release because the machine was slow: the yardstick's
// work, which is a few milliseconds, took as long as a message to a node may take.
func (r *resource) nodeSlow(from, to int64) bool {
	return r.majority && slices.ContainsFunc(r.paces, func(s history.Pace) bool {
		return s.Lost > 0 && max(s.Worst, s.Disk) >= nodeTime && s.From <= to && s.To >= from
	})
}

// auditorsWait reports resources that the auditor did not get in time, by the tries of each round.
func auditorsWait(res *resource) []Finding {
	first := map[int]*history.Op{}
	got := map[int]*history.Op{}
	for _, op := range res.ops {
		if op.Client != auditor || op.Action != history.Acquire || strings.HasPrefix(op.Surface, probe) {
			continue
		}
		if first[op.Round] == nil {
			first[op.Round] = op
		}
		if op.Outcome == history.Done && got[op.Round] == nil {
			got[op.Round] = op
		}
	}
	var found []Finding
	for _, round := range slices.Sorted(maps.Keys(first)) {
		began, won := first[round], got[round]
		switch limit := res.paces.After(began.Begin, recovery); {
		case won != nil && won.End <= limit:
			if won.End > began.Begin+recovery {
				res.slow[won.ID] = NotFree
			}
		case won == nil && res.now != 0 && res.now <= limit:
		case won != nil:
			found = append(found, tell(NotFree, res.name, fmt.Sprintf("the auditor asked at %s and got it at %s only",
				res.at(began.Begin), res.at(won.End)), began, won))
		default:
			found = append(found, tell(NotFree, res.name, fmt.Sprintf("the auditor asked at %s and never got it (%s %s)",
				res.at(began.Begin), began.Code, began.Error), began))
		}
	}
	return found
}

// late reports a call that took 10 s longer than its deadline, or that has no answer although its client is at rest.
// Time during which the client was stopped does not count.
func (j *Judge) late(op *history.Op) (Finding, bool) {
	where := fmt.Sprintf("client %d", op.Client)
	if op.Outcome != history.Begun && op.End != 0 {
		if !j.beyond(op, op.End) {
			return Finding{}, false
		}
		return tell(Late, where, fmt.Sprintf("%s (%s %s) ended at %s, %s after its deadline",
			op.ID, op.Surface, op.Action, seconds(op.End-j.start), seconds(op.End-op.Limit)), op), true
	}
	if j.killed(op) {
		return Finding{}, false
	}
	if rest, ok := j.resting[op.Client]; ok && op.Begin <= rest {
		return tell(Late, where, fmt.Sprintf("%s (%s %s) began at %s and has no answer, and its client is at rest since %s",
			op.ID, op.Surface, op.Action, seconds(op.Begin-j.start), seconds(rest-j.start)), op), true
	}
	if j.beyond(op, j.now) {
		return tell(Late, where, fmt.Sprintf("%s (%s %s) began at %s and has no answer, %s after its deadline",
			op.ID, op.Surface, op.Action, seconds(op.Begin-j.start), seconds(j.now-op.Limit)), op), true
	}
	return Finding{}, false
}

// beyond reports that a call was late at a moment.
func (j *Judge) beyond(op *history.Op, at int64) bool {
	over := at - op.Limit - grace
	if op.Limit == 0 || over <= 0 {
		return false
	}
	stopped, lost := j.stopped(op.Client, op.Begin, at)
	if over -= stopped; over <= 0 {
		return false
	}
	if over <= lost {
		j.slow[op.ID] = Late
		return false
	}
	delete(j.slow, op.ID)
	return true
}

// killed reports that the process that made the call was killed.
func (j *Judge) killed(op *history.Op) bool {
	return slices.ContainsFunc(j.stops, func(s history.Span) bool {
		return s.What == Killed && (s.Client == op.Client || s.Client == everyone) && op.Begin <= max(s.From, s.To)
	})
}

// stopped is for how long a client did not run between two moments, and what the machine lost of the rest.
func (j *Judge) stopped(client int, from, to int64) (total, lost int64) {
	until := from
	for _, s := range j.stops { // ordered by their beginnings
		if s.Client != client && s.Client != everyone {
			continue
		}
		a, b := max(s.From, until), min(s.To, to)
		if b > a {
			lost += j.paces.Lost(until, a)
			total += b - a
			until = b
		}
	}
	return total, lost + j.paces.Lost(until, to)
}

// notRecovered reports the probes of a round with an action that was not done within 30 s after the last fault, or that
// failed again later.
func (j *Judge) notRecovered() []Finding {
	type key struct {
		round   int
		surface string
		action  history.Action
	}
	probes := map[key][]*history.Op{}
	for _, op := range j.probes {
		if healed, ok := j.healed[op.Round]; ok && (op.End == 0 || op.End > healed) {
			k := key{op.Round, op.Surface, op.Action}
			probes[k] = append(probes[k], op)
		}
	}
	var found []Finding
	for k, ops := range probes {
		healed := j.healed[k.round]
		limit := j.paces.After(healed, recovery)
		by := func(limit int64) bool {
			return slices.ContainsFunc(ops, func(op *history.Op) bool { return op.Outcome == history.Done && op.End <= limit })
		}
		in := by(limit)
		if in && !by(healed+recovery) {
			j.slow[fmt.Sprint(k)] = NotRecovered
		}
		if !in && (j.now == 0 || j.now > limit) {
			found = append(found, tell(NotRecovered, k.surface, fmt.Sprintf(
				"in round %d no %s was done within 30 s after the faults were over at %s",
				k.round, k.action, seconds(healed-j.start)), ops...))
			continue
		}
		for _, op := range ops {
			switch {
			case op.Begin <= limit || op.Outcome == history.Done:
			case op.End-op.Begin >= nodeTime && 2*j.paces.Lost(op.Begin, op.End) >= op.End-op.Begin: // the machine did not give it its time
				j.slow[op.ID] = NotRecovered
			default:
				found = append(found, tell(NotRecovered, k.surface, fmt.Sprintf(
					"%s received %s (%s %s) at %s, and the faults were over at %s",
					op.ID, op.Outcome, op.Code, op.Error, seconds(op.End-j.start), seconds(healed-j.start)), op))
			}
		}
	}
	slices.SortFunc(found, func(a, b Finding) int { return cmp.Compare(a.Where+a.Text, b.Where+b.Text) })
	return found
}

// leaks reports sizes that grow: of at least four samples, the last two exceed one and a half times the least of the
// first three, plus the slack of their unit.
func (j *Judge) leaks() []Finding {
	var found []Finding
	for _, name := range slices.Sorted(maps.Keys(j.sizes)) {
		samples := j.sizes[name]
		n := len(samples)
		if n < 4 {
			continue
		}
		unit := name[strings.LastIndexByte(name, ' ')+1:]
		bound := 1.5*slices.Min(samples[:3]) + j.slack[unit]
		if samples[n-2] > bound && samples[n-1] > bound {
			found = append(found, tell(Leak, name, fmt.Sprintf("%g after %d samples, and %g at first; %g would be flat",
				samples[n-1], n, slices.Min(samples[:3]), bound)))
		}
	}
	return found
}
