package judge

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fencegate/fencegate/robustness/history"
)

// Judge judges a run while it is going on. Its zero value is ready. It is not safe for concurrent use.
type Judge struct {
	groups   map[string]*group
	open     map[string]*history.Op // without an answer
	probes   []*history.Op
	lostOnce map[effectKey]bool
	lossOnce map[[2]int64]bool

	stops     []history.Span
	outages   []history.Span
	olden     []history.Span // when an old primary could be read
	paces     history.Paces
	healed    map[int]int64
	resting   map[int]int64
	sizes     map[string][]float64
	slack     map[string]float64
	async     bool
	majority  bool
	exclusion bool
	ahead     int64 // of the wall clock
	now       int64
	start     int64

	reported map[string]bool // by finding
	slow     map[string]Kind // what the machine excuses, by call or place
	counts   Counts
}

// idleRounds is the number of rounds without a change after which a resource is compacted.
const idleRounds = 3

// Add takes new evidence and examines the resources that it changed.
// The report has the new findings, and the counts of the whole run.
func (j *Judge) Add(evidence Evidence) Report {
	j.prepare()
	changed := j.takeOps(evidence.Ops)
	j.takeRest(evidence)
	j.takeLosses(evidence.Lost)
	for _, e := range evidence.Effects {
		j.takeEffect(e)
	}
	found := j.examine(evidence.Budget)
	for _, op := range changed {
		if f, ok := j.late(op); ok {
			found = append(found, f)
		}
	}
	for _, op := range j.open {
		if f, ok := j.late(op); ok {
			found = append(found, f)
		}
	}
	found = append(found, j.notRecovered()...)
	found = append(found, j.leaks()...)
	return j.report(found)
}

func (j *Judge) prepare() {
	if j.groups != nil {
		return
	}
	j.groups = map[string]*group{}
	j.open = map[string]*history.Op{}
	j.lostOnce = map[effectKey]bool{}
	j.lossOnce = map[[2]int64]bool{}
	j.healed = map[int]int64{}
	j.resting = map[int]int64{}
	j.sizes = map[string][]float64{}
	j.slack = map[string]float64{}
	j.reported = map[string]bool{}
	j.slow = map[string]Kind{}
	j.counts = Counts{Ops: map[string]int{}, Refusals: map[string]int{}}
}

func (j *Judge) group(name string) *group {
	g := j.groups[name]
	if g == nil {
		g = &group{
			name: name, ops: map[string]*history.Op{}, effects: map[effectKey]Effect{},
		}
		j.groups[name] = g
	}
	return g
}

// takeOps assigns calls to their resources, and returns those that have an answer.
func (j *Judge) takeOps(ops []history.Op) []*history.Op {
	var answered []*history.Op
	for _, op := range history.Last(ops) {
		name := op.Resource
		if name == "" && op.Register != "" {
			name = resourceOf(op.Register)
		}
		g := j.group(name)
		if old := g.ops[op.ID]; old != nil {
			if op.Outcome == history.Begun {
				continue // a known call, with or without its answer
			}
			j.count(old, -1)
		}
		g.ops[op.ID], g.changed = &op, true
		j.count(&op, 1)
		if j.start == 0 || op.Begin < j.start {
			j.start = op.Begin
		}
		if op.Outcome == history.Begun {
			j.open[op.ID] = &op
		} else {
			delete(j.open, op.ID)
			answered = append(answered, &op)
		}
		if strings.HasPrefix(op.Surface, probe) {
			j.probes = slices.DeleteFunc(j.probes, func(old *history.Op) bool { return old.ID == op.ID })
			j.probes = append(j.probes, &op)
		}
	}
	return answered
}

func (j *Judge) count(op *history.Op, by int) {
	j.counts.Ops[op.Surface+" "+string(op.Action)+" "+string(op.Outcome)] += by
	if op.Action == history.Acquire && op.Outcome == history.Done {
		j.counts.Acquisitions += by
	}
	if op.Outcome == history.Refused {
		j.counts.Refusals[op.Code] += by
	}
}

// takeRest takes the evidence that belongs to no resource.
func (j *Judge) takeRest(evidence Evidence) {
	j.stops = append(j.stops, evidence.Stops...)
	slices.SortFunc(j.stops, compareSpans)
	j.stops = slices.Compact(j.stops)
	j.outages = append(j.outages, evidence.Outages...)
	slices.SortFunc(j.outages, compareSpans)
	j.outages = slices.Compact(j.outages)
	j.olden = append(j.olden, evidence.Returned...)
	slices.SortFunc(j.olden, compareSpans)
	j.olden = slices.Compact(j.olden)
	j.paces = append(j.paces, evidence.Paces...)
	slices.SortFunc(j.paces, func(a, b history.Pace) int { return cmp.Compare(a.From, b.From) })
	j.paces = slices.Compact(j.paces)
	maps.Copy(j.healed, evidence.Healed)
	maps.Copy(j.resting, evidence.Resting)
	maps.Copy(j.slack, evidence.Slack)
	maps.Copy(j.sizes, evidence.Sizes)
	j.async = j.async || evidence.Async
	j.ahead = max(j.ahead, evidence.WallAhead)
	j.now, j.majority, j.exclusion = evidence.Now, evidence.Majority, evidence.Exclusion
}

func compareSpans(a, b history.Span) int {
	return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Client, b.Client),
		cmp.Compare(a.What, b.What))
}

// takeLosses moves effects that a failover took back from the order to their loss.
func (j *Judge) takeLosses(losses []Loss) {
	for _, loss := range losses {
		key := [2]int64{loss.From, loss.To}
		if j.lossOnce[key] {
			continue
		}
		j.lossOnce[key] = true
		parts := map[string]*Loss{}
		part := func(name string) *Loss {
			if parts[name] == nil {
				parts[name] = &Loss{From: loss.From, To: loss.To}
			}
			return parts[name]
		}
		for _, e := range loss.Effects {
			p := part(resourceOf(e.Register))
			p.Effects = append(p.Effects, e)
		}
		for _, f := range loss.Fences {
			p := part(f.Resource)
			p.Fences = append(p.Fences, f)
		}
		for name, p := range parts {
			g := j.group(name)
			for _, e := range p.Effects {
				key := effectKey{e.Seq, e.Value}
				if _, known := g.effects[key]; known {
					delete(g.effects, key)
					j.counts.Effects--
				}
				j.lostOnce[key] = true
			}
			g.losses, g.changed = append(g.losses, *p), true
		}
	}
}

func (j *Judge) takeEffect(e Effect) {
	g, key := j.group(resourceOf(e.Register)), effectKey{e.Seq, e.Value}
	if _, known := g.effects[key]; known || j.lostOnce[key] {
		return
	}
	g.effects[key], g.changed = e, true
	j.counts.Effects++
}

// checks are the checks of a resource.
var checks = []func(*resource) []Finding{
	lostWrites, doneAnyway, doneTwice, fromNowhere, torn, stale, tokenTwice, tokenFalls, revoked,
	lostUpdates, orderBroken, staleReads, phantomReads, wrongBytes, unreadable, notFree,
}

// examine runs the checks on every changed resource, and then the search for linearizations.
func (j *Judge) examine(budget time.Duration) []Finding {
	if budget == 0 {
		budget = time.Second
	}
	end := time.Now().Add(budget)
	var found []Finding
	for _, name := range slices.Sorted(maps.Keys(j.groups)) {
		g := j.groups[name]
		if !g.changed {
			if g.idle++; g.idle == idleRounds {
				g.compact()
			}
			continue
		}
		g.changed, g.idle = false, 0
		res := g.resource(j)
		guilty := map[string]bool{}
		for _, check := range checks {
			for _, f := range check(res) {
				found = append(found, f)
				guilty[f.Where] = true
			}
		}
		unordered, over := notLinearizable(res, guilty, func() time.Duration { return time.Until(end) })
		found = append(found, unordered...)
		o := overlaps(res)
		if o.count > g.facts.overlaps && j.exclusion {
			found = append(found, o.twoHolders(res))
		}
		g.facts.grow(facts{overlaps: o.count, longest: o.longest, excused: res.excused, overBudget: over})
	}
	return found
}
