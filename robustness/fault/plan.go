package fault

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Event is one fault of a plan.
type Event struct {
	At    time.Duration // since the beginning of the round's work
	Fault string
	Seed  uint64 // seed of the fault's own draws
	For   time.Duration
}

// String formats the event as a line for ParseEvent.
func (e Event) String() string {
	return fmt.Sprintf("%-7s %-28s for %-7s seed %016x", e.At, e.Fault, e.For, e.Seed)
}

// ParseEvent parses String's format.
func ParseEvent(line string) (Event, error) {
	words := strings.Fields(line)
	if len(words) != 6 || words[2] != "for" || words[4] != "seed" {
		return Event{}, fmt.Errorf("not an event: %q", line)
	}
	at, err := time.ParseDuration(words[0])
	lasts, err2 := time.ParseDuration(words[3])
	seed, err3 := strconv.ParseUint(words[5], 16, 64)
	if _, ok := lookup(words[1]); !ok {
		err = errors.Join(err, fmt.Errorf("no fault is called %q", words[1]))
	}
	return Event{At: at, Fault: words[1], For: lasts, Seed: seed}, errors.Join(err, err2, err3)
}

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
		if isAny(f.Name, onceARound) {
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
func (w Wish) choice() ([]Fault, error) {
	for _, name := range w.Only {
		if !slices.ContainsFunc(All, func(f Fault) bool { return is(f.Name, name) }) {
			return nil, fmt.Errorf("no fault is called %q", name)
		}
	}
	var from []Fault
	for _, f := range All {
		if (len(w.Only) == 0 || isAny(f.Name, w.Only)) && (f.Needs == "" || !slices.Contains(w.Lacks, f.Needs)) {
			from = append(from, f)
		}
	}
	if len(from) == 0 {
		return nil, errors.New("no fault is left: the cluster has not what they need")
	}
	return from, nil
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
		if !fits || forbidden(slices.Concat(plan, burst), e, d.Async) != "" {
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
