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

// group is the evidence about one resource.
type group struct {
	name    string
	ops     map[string]*history.Op
	effects map[effectKey]Effect
	losses  []Loss
	facts   facts
	changed bool
	idle    int // rounds without a change
}

// effectKey identifies an effect, also if two primaries gave the same number.
type effectKey struct {
	seq   int64
	value string
}

// facts are the counts of one resource.
type facts struct {
	overlaps   int
	longest    time.Duration
	excused    map[string]int
	overBudget int
}

// grow keeps the larger of each count: a compacted resource has fewer calls than before.
func (f *facts) grow(now facts) {
	f.overlaps = max(f.overlaps, now.overlaps)
	f.longest = max(f.longest, now.longest)
	f.overBudget = max(f.overBudget, now.overBudget)
	if f.excused == nil {
		f.excused = map[string]int{}
	}
	for what, n := range now.excused {
		f.excused[what] = max(f.excused[what], n)
	}
}

// resourceOf is a register's resource: that of its row, or, by the rule prefix:1, that of its object.
func resourceOf(register string) string {
	if resource, ok := strings.CutPrefix(register, "row:"); ok {
		return resource
	}
	object := strings.TrimPrefix(register, "file:")
	if i := strings.LastIndexByte(object, '/'); i >= 0 {
		return object[:i]
	}
	return object
}

// resource is a group prepared for the checks.
type resource struct {
	name      string
	async     bool
	majority  bool
	start     int64
	now       int64
	ahead     int64                  // of the wall clock; 0: unknown
	ops       []*history.Op          // ordered by their beginnings
	writes    map[string]*history.Op // by ID
	granted   []*history.Op          // acquisitions that were Done, ordered by their ends
	losses    []Loss                 // ordered by time
	fell      []Fence                // of this resource
	registers []*register            // sorted by name
	excused   map[string]int         // what was excused so far
	outages   []history.Span         // ordered by their beginnings
	paces     history.Paces
	slow      map[string]Kind // the judge's
	olden     []history.Span  // when an old primary could be read
	old       map[source]bool // values read then
}

func (g *group) resource(j *Judge) *resource {
	r := &resource{
		name: g.name, async: j.async, majority: j.majority, start: j.start, now: j.now, ahead: j.ahead, paces: j.paces, slow: j.slow, losses: g.losses,
		outages: j.outages, olden: j.olden, old: map[source]bool{}, writes: map[string]*history.Op{}, excused: map[string]int{},
	}
	r.ops = slices.SortedFunc(maps.Values(g.ops), func(a, b *history.Op) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.ID, b.ID))
	})
	byName := map[string]*register{}
	get := func(name string) *register {
		if byName[name] == nil {
			byName[name] = &register{name: name, at: map[string]*places{}}
		}
		return byName[name]
	}
	for _, op := range r.ops {
		r.place(op, get)
	}
	slices.SortStableFunc(r.granted, func(a, b *history.Op) int { return cmp.Compare(a.End, b.End) })
	for _, e := range g.effects {
		reg := get(e.Register)
		reg.chain = append(reg.chain, e)
	}
	for i, loss := range g.losses {
		for _, e := range loss.Effects {
			reg := get(e.Register)
			reg.lost = append(reg.lost, lostEffect{Effect: e, loss: i})
		}
		r.fell = append(r.fell, loss.Fences...)
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		byName[name].arrange(r.losses)
		r.registers = append(r.registers, byName[name])
	}
	return r
}

// outdated reports that an old primary may have answered the read.
func (r *resource) outdated(op *history.Op) bool {
	return slices.ContainsFunc(r.olden, func(s history.Span) bool { return op.Begin <= s.To && op.End >= s.From })
}

// place adds a call to the lists that the checks use.
func (r *resource) place(op *history.Op, get func(string) *register) {
	switch op.Action {
	case history.Write:
		r.writes[op.ID] = op
		for name := range op.Based {
			reg := get(name)
			reg.writes = append(reg.writes, op)
		}
	case history.Read:
		// A read that saw wrong bytes is a finding by itself and proves nothing else.
		switch {
		case op.Outcome != history.Done || op.Wrong != "":
		case r.outdated(op):
			r.excused["read while an old primary was up"]++
			r.old[source{op.Register, op.Token, op.Saw}] = true
		default:
			reg := get(op.Register)
			reg.reads = append(reg.reads, op)
		}
	case history.Acquire:
		if op.Outcome == history.Done {
			r.granted = append(r.granted, op)
		}
	}
}

// source is the read from which a lease has a value.
type source struct {
	register string
	token    int64
	saw      string
}

// wrote returns the write of the register whose ID is the value.
func (r *resource) wrote(reg *register, value string) *history.Op {
	op := r.writes[value]
	if op == nil {
		return nil
	}
	if _, ok := op.Based[reg.name]; !ok {
		return nil
	}
	return op
}

// fallen reports that a failover set the fence back below the token, so that its holder is not protected.
func (r *resource) fallen(token int64) bool {
	return r.async && slices.ContainsFunc(r.fell, func(f Fence) bool { return f.Token < token && token <= f.Was })
}

// at formats a moment for a message.
func (r *resource) at(moment int64) string { return seconds(moment - r.start) }

func seconds(ns int64) string { return fmt.Sprintf("%.6f s", float64(ns)/1e9) }

// tell builds a finding. It omits nil ops.
func tell(kind Kind, where, text string, ops ...*history.Op) Finding {
	f := Finding{Kind: kind, Where: where, Text: text}
	for _, op := range ops {
		if op != nil {
			f.Ops = append(f.Ops, *op)
		}
	}
	return f
}
