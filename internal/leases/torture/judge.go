package torture

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// Hold is one lease as its holder saw it. Its times are on a clock that all processes share.
type Hold struct {
	Resource    string
	Token       fence.Token
	Asked, From time.Duration // before the call, and after it
	To          time.Duration // before its release, or its deadline
}

// event is what a process reports.
type event struct {
	Hold              *Hold  `json:",omitempty"`
	Early, Kept, Late int    `json:",omitzero"`
	Stuck             int    `json:",omitzero"`
	Strange           string `json:",omitempty"` // an error that no fault explains
}

// judge records the leases that were given.
type judge struct {
	mu      sync.Mutex
	holds   map[string][]Hold
	verdict Verdict // what is only counted
}

func newJudge() *judge {
	return &judge{holds: make(map[string][]Hold), verdict: Verdict{Faults: make(map[string]int)}}
}

func (j *judge) take(e event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e.Hold != nil {
		j.holds[e.Hold.Resource] = append(j.holds[e.Hold.Resource], *e.Hold)
		j.verdict.Leases++
	}
	if e.Strange != "" {
		j.verdict.Strange = append(j.verdict.Strange, e.Strange)
	}
	j.verdict.Early += e.Early
	j.verdict.Kept += e.Kept
	j.verdict.Late += e.Late
	j.verdict.Stuck += e.Stuck
}

func (j *judge) played(fault string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.verdict.Faults[fault]++
}

func (j *judge) given() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.verdict.Leases
}

// Verdict is the result of a run.
type Verdict struct {
	Leases     int
	Duplicates int // tokens that were given before
	Falling    int // tokens below one whose acquisition was complete before theirs began
	Overlaps   int // leases during which a newer one was given
	Worst      Overlap
	Early      int // leases that were lost before their deadline
	Late       int // leases that looked valid after their deadline
	Kept       int // leases that were shown after their release
	Stuck      int // resources that could not be acquired in the end
	Strange    []string
	Faults     map[string]int
}

// Overlap is a lease that was given before an older one had ended.
type Overlap struct {
	Older, Newer Hold
	Lasted       time.Duration
}

// judged compares the leases of each resource.
func (j *judge) judged() Verdict {
	j.mu.Lock()
	defer j.mu.Unlock()
	v := j.verdict
	v.Faults, v.Strange = maps.Clone(v.Faults), slices.Clone(v.Strange)
	for _, holds := range j.holds {
		twice, fell := Tokens(holds)
		v.Duplicates += twice
		v.Falling += fell
		for _, o := range overlaps(holds) {
			v.Overlaps++
			if o.Lasted > v.Worst.Lasted {
				v.Worst = o
			}
		}
	}
	return v
}

// Tokens counts the tokens of a resource that were given before, and those that are lower than one whose acquisition
// was complete before theirs began.
func Tokens(holds []Hold) (twice, fell int) {
	seen := make(map[fence.Token]bool, len(holds))
	for _, h := range holds {
		if seen[h.Token] {
			twice++
		}
		seen[h.Token] = true
	}
	asked := slices.SortedFunc(slices.Values(holds), func(a, b Hold) int { return cmp.Compare(a.Asked, b.Asked) })
	given := slices.SortedFunc(slices.Values(holds), func(a, b Hold) int { return cmp.Compare(a.From, b.From) })
	var highest fence.Token // among those given before h was asked for
	for _, h := range asked {
		for len(given) > 0 && given[0].From < h.Asked {
			highest, given = max(highest, given[0].Token), given[1:]
		}
		if h.Token < highest {
			fell++
		}
	}
	return twice, fell
}

// overlaps returns the leases of a resource during which one with a higher token was given, each with the first of
// those, and the ones with equal tokens.
func overlaps(holds []Hold) (found []Overlap) {
	holds = slices.SortedFunc(slices.Values(holds), func(a, b Hold) int { return cmp.Or(cmp.Compare(b.Token, a.Token), cmp.Compare(b.From, a.From)) })
	first := Hold{From: math.MaxInt64} // given, of those with a higher token
	for _, h := range holds {
		if both := h.To - first.From; both > 0 {
			found = append(found, Overlap{h, first, both})
		}
		if h.From < first.From {
			first = h
		}
	}
	return found
}

// wrong describes the violations of what the source promises.
func (v Verdict) wrong(cfg Config) (said []string) {
	complain := func(bad bool, format string, args ...any) {
		if bad {
			said = append(said, fmt.Sprintf(format, args...))
		}
	}
	w := v.Worst
	complain(v.Duplicates+v.Falling > 0, "%d tokens came twice, %d fell", v.Duplicates, v.Falling)
	complain(w.Lasted > cfg.Overlap, "%s: token %d was given %.1f ms before %d was over; allowed are %.1f ms",
		w.Older.Resource, w.Newer.Token, ms(w.Lasted), w.Older.Token, ms(cfg.Overlap))
	complain(v.Early > 0 && !cfg.Loses, "%d leases were lost before their deadline", v.Early)
	complain(v.Late > 0, "%d times a lease looked valid after its deadline", v.Late)
	complain(v.Kept > 0, "%d resources were not free once they were released", v.Kept)
	complain(v.Stuck > 0, "%d resources could not be had in the end", v.Stuck)
	complain(len(v.Strange) > 0, "%d errors that no fault explains: %s", len(v.Strange), strings.Join(v.Strange, "; "))
	complain(v.Leases < cfg.enough(), "only %d leases were given, so this shows nothing", v.Leases)
	return said
}

func (v Verdict) String() string {
	return fmt.Sprintf("%d leases: %d tokens came twice, %d fell, %d overlaps (at most %.1f ms), %d lost early, %d valid too long, %d released and not free; %s",
		v.Leases, v.Duplicates, v.Falling, v.Overlaps, ms(v.Worst.Lasted), v.Early, v.Late, v.Kept, v.faults())
}

func (v Verdict) faults() string {
	var faults []string
	for _, name := range slices.Sorted(maps.Keys(v.Faults)) {
		faults = append(faults, fmt.Sprintf("%d %s", v.Faults[name], name))
	}
	return strings.Join(faults, ", ")
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
