package fault

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Event is one fault of a plan.
type Event struct {
	At    time.Duration // since the beginning of the round's work
	Fault string
	Seed  uint64 // seed of the fault's own draws
	For   time.Duration
}

func (e Event) String() string {
	return fmt.Sprintf("%-7s %-28s for %-7s seed %016x", e.At, e.Fault, e.For, e.Seed)
}

// end is the latest end of an event, according to the plan.
func (e Event) end() time.Duration { return e.At + e.For + byName()[e.Fault].Tail }

// Wish is the input of a plan. Equal wishes have equal plans.
type Wish struct {
	Seed   uint64
	Round  int
	Length time.Duration // of the round's work; every fault ends within it
	Only   []string      // names of faults, or prefixes such as "redis"; none: all
	Async  bool          // the standby replicates asynchronously
	Lacks  []Need        // what the cluster does not have
}

// Plan draws the faults of a round: single ones, and two or three at once, with quiet between them.
func Plan(w Wish) ([]Event, error) {
	from, err := w.choice()
	if err != nil {
		return nil, err
	}
	d := &drawer{Wish: w, rand: rand.New(rand.NewPCG(w.Seed, uint64(w.Round)))}
	for _, f := range from {
		if is(f.Name, onceARound...) {
			d.heavy = append(d.heavy, f)
		} else {
			d.light = append(d.light, f)
		}
	}
	plan := d.main()
	if len(d.light) == 0 {
		return plan, nil
	}
	for at := d.between(0, 1500*time.Millisecond); at < w.Length; {
		burst := d.burst(plan, at)
		plan = append(plan, burst...)
		for _, e := range burst {
			at = max(at, e.At+e.For)
		}
		at += d.quiet()
	}
	slices.SortStableFunc(plan, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	return plan, nil
}

// choice returns the faults that the wish admits.
func (w Wish) choice() (from []Fault, err error) {
	for _, name := range w.Only {
		if !slices.ContainsFunc(All, func(f Fault) bool { return is(f.Name, name) }) {
			return nil, fmt.Errorf("no fault is called %q", name)
		}
	}
	for _, f := range All {
		if (len(w.Only) == 0 || is(f.Name, w.Only...)) && (f.Needs == "" || !slices.Contains(w.Lacks, f.Needs)) {
			from = append(from, f)
		}
	}
	if len(from) == 0 {
		err = errors.New("no fault is left: the cluster has not what they need")
	}
	return from, err
}

// drawer draws one plan.
type drawer struct {
	Wish

	rand         *rand.Rand
	heavy, light []Fault
}

// main draws one of the faults that occur at most once a round, around which the others are placed: in two rounds of
// five, and always if there are no others.
func (d *drawer) main() []Event {
	if len(d.heavy) == 0 || len(d.light) > 0 && d.rand.IntN(5) >= 2 {
		return nil
	}
	f := d.fault(d.heavy)
	latest := d.Length - f.Tail - f.Longest
	if latest < 0 {
		return nil
	}
	if e, fits := d.event(f, d.between(0, latest)); fits {
		return []Event{e}
	}
	return nil
}

// tries bounds how often another fault is drawn if one is not allowed.
const tries = 12

// burst draws up to three faults that begin close together.
func (d *drawer) burst(plan []Event, at time.Duration) []Event {
	size := 1
	switch pick := d.rand.IntN(20); {
	case pick >= 15:
		size = 3
	case pick >= 7:
		size = 2
	}
	var burst []Event
	for range tries * size {
		e, fits := d.event(d.fault(d.light), at+d.between(0, 700*time.Millisecond))
		if !fits || !allowed(slices.Concat(plan, burst), e, d.Async) {
			continue
		}
		if burst = append(burst, e); len(burst) == size {
			break
		}
	}
	return burst
}

// event places a fault at that time, shortened near the round's end; false: it does not fit.
func (d *drawer) event(f Fault, at time.Duration) (Event, bool) {
	lasts := time.Duration(float64(f.Shortest) * math.Pow(float64(f.Longest)/float64(f.Shortest), d.rand.Float64()))
	e := Event{At: at.Round(time.Millisecond), Fault: f.Name, Seed: d.rand.Uint64()}
	left := d.Length - e.At - f.Tail
	e.For = min(lasts, left).Truncate(time.Millisecond)
	return e, left >= f.Shortest
}

func (d *drawer) fault(from []Fault) Fault {
	sum := 0
	for _, f := range from {
		sum += f.Weight
	}
	pick := d.rand.IntN(sum)
	for _, f := range from {
		if pick -= f.Weight; pick < 0 {
			return f
		}
	}
	panic("a weight is not positive")
}

func (d *drawer) between(low, high time.Duration) time.Duration {
	return low + time.Duration(d.rand.Int64N(int64(high-low)+1))
}

// quiet draws a pause: usually short, sometimes long enough for everything to recover.
func (d *drawer) quiet() time.Duration {
	if d.rand.IntN(5) == 0 {
		return d.between(3*time.Second, 7*time.Second)
	}
	return d.between(0, 1200*time.Millisecond)
}

// rule lists faults that must not overlap, because the product guarantees nothing for the combination, or because one
// would undo the other.
type rule struct {
	first, then []string // names, or prefixes of names
	// gap is how long after the end of every first a then may begin. They never overlap, in either order.
	gap  time.Duration
	mode mode
}

type mode int

const (
	always mode = iota
	synchronous
	asynchronous
)

// replication lists the faults between the two servers that make the standby lag.
var replication = func() (all []string) {
	for _, kind := range netKinds {
		all = append(all, "net-"+kind.name+"/postgres-postgres")
	}
	return append(all, "pg-standby-freeze")
}()

var (
	servers   = append([]string{"pg-crash", "pg-freeze", "pg-failover", "rolling-pg"}, replication...)
	forgetful = []string{"redis-kill", "redis-older", "redis-empty", "redis-flush", "rolling-redis", "nodes-sweep"}
	failover  = []string{"pg-failover"}
)

// rules are all the combinations that a plan omits. It keeps everything for which docs/lock.md and docs/operations.md
// give a guarantee: with arming, every node may lose everything at any time.
var rules = []rule{
	// Each of them begins with a primary and a standby that run: an operator promotes no server that stands still.
	{servers, servers, sec, always},
	// Who ends sessions has to log in.
	{[]string{"pg-crash", "pg-freeze", "rolling-pg", "pg-failover"}, []string{"pg-terminate"}, 0, always},
	// A commit whose wait for the standby an operator or a crash ended is seen before the standby has it; promoting a
	// standby that has not caught up loses what was seen.
	{append([]string{"pg-terminate", "pg-crash", "rolling-pg"}, replication...), failover, 8 * sec, synchronous},
	// Gateways keep on the nodes which PostgreSQL they serve: if the nodes forget, too, they can't notice. The new
	// identity is on the nodes at the gateways' next look.
	{forgetful, failover, 5 * sec, asynchronous},
	{failover, forgetful, 5 * sec, asynchronous},
	// A grace that is shorter than the standby's lag deletes the bytes that the lost commits replaced.
	{[]string{"sweep"}, failover, 10 * sec, asynchronous},
	// A rolling restart is done to a system that is otherwise in order, and waits for that.
	{[]string{"rolling"}, []string{"rolling", "gateway", "redis", "pg", "blobs", "net", "busy"}, 0, always},
}

// onceARound lists the faults that a round has at most once: each takes most of a round.
var onceARound = []string{"pg-failover", "rolling"}

// allowed reports whether an event may be part of the plan.
func allowed(plan []Event, e Event, async bool) bool {
	return !slices.ContainsFunc(plan, func(other Event) bool {
		return slices.ContainsFunc(onceARound, func(name string) bool { return is(e.Fault, name) && is(other.Fault, name) }) ||
			slices.ContainsFunc(rules, func(r rule) bool {
				applies := r.mode == always || (r.mode == asynchronous) == async
				return applies && (r.parts(other, e) || r.parts(e, other))
			})
	})
}

// parts reports whether the rule excludes these two, in these roles.
func (r rule) parts(first, then Event) bool {
	return is(first.Fault, r.first...) && is(then.Fault, r.then...) &&
		first.At < then.end() && then.At < first.end()+r.gap
}
