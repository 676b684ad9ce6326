package torture

import (
	"fmt"
	"sync"
	"time"

	"github.com/fencegate/fencegate/fence"
)

// hold is one lease as its holder saw it.
type hold struct {
	resource    string
	token       fence.Token
	asked, from time.Time // before the call, and after it
	to          time.Time // before its release, or its deadline
}

// judge records the leases that were given.
type judge struct {
	mu    sync.Mutex
	holds map[string][]hold
	given int
	end   func() // stops the run when the time is over and enough leases were given

	early, kept, stuck, kills, freezes, cuts, jumps int
}

func (j *judge) note(h hold) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.holds[h.resource] = append(j.holds[h.resource], h)
	if j.given++; j.given >= enough && j.end != nil {
		j.end()
	}
}

// over ends a run, or makes it end once enough leases were given.
func (j *judge) over(end func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.end = end; j.given >= enough {
		end()
	}
}

func (j *judge) count(n *int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	*n++
}

// verdict is the result of a run.
type verdict struct {
	leases     int
	duplicates int // tokens that were given twice
	falling    int // tokens below one whose acquisition was complete before theirs began
	overlaps   []overlap
	early      int // leases that were lost before their deadline
	kept       int // resources that were not free after their release
	stuck      int // resources that could not be acquired in the end

	kills, freezes, cuts, jumps int
}

// overlap is a lease that was given before an older one had ended.
type overlap struct {
	older, newer hold
	lasted       time.Duration
}

// verdict compares every lease with every other of its resource.
func (j *judge) verdict() verdict {
	j.mu.Lock()
	defer j.mu.Unlock()
	v := verdict{early: j.early, kept: j.kept, stuck: j.stuck, kills: j.kills, freezes: j.freezes, cuts: j.cuts, jumps: j.jumps}
	for _, all := range j.holds {
		v.leases += len(all)
		for i, h := range all {
			fell := false
			for k, o := range all {
				if i < k && h.token == o.token {
					v.duplicates++
				}
				fell = fell || o.from.Before(h.asked) && h.token < o.token
				if both := h.to.Sub(o.from); o.token > h.token && both > 0 {
					v.overlaps = append(v.overlaps, overlap{h, o, both})
				}
			}
			if fell {
				v.falling++
			}
		}
	}
	return v
}

// wrong describes the violations. Two holders may overlap for at most allowed.
func (v verdict) wrong(allowed time.Duration) (said []string) {
	if v.duplicates+v.falling > 0 {
		said = append(said, fmt.Sprintf("%d tokens came twice, %d fell", v.duplicates, v.falling))
	}
	if o := v.longest(); o.lasted > allowed {
		said = append(said, fmt.Sprintf("%s: token %d was given %.1f ms before %d was over; allowed are %.1f ms",
			o.older.resource, o.newer.token, ms(o.lasted), o.older.token, ms(allowed)))
	}
	if v.early > 0 {
		said = append(said, fmt.Sprintf("%d leases were lost before their deadline", v.early))
	}
	if v.kept > 0 {
		said = append(said, fmt.Sprintf("%d resources were not free once they were released", v.kept))
	}
	if v.stuck > 0 {
		said = append(said, fmt.Sprintf("%d resources could not be had in the end", v.stuck))
	}
	if v.leases < enough {
		said = append(said, fmt.Sprintf("only %d leases were given, so this shows nothing", v.leases))
	}
	return said
}

// longest returns the longest overlap; the zero value if there is none.
func (v verdict) longest() (worst overlap) {
	for _, o := range v.overlaps {
		if o.lasted > worst.lasted {
			worst = o
		}
	}
	return worst
}

func (v verdict) String() string {
	return fmt.Sprintf("%d leases: %d tokens came twice, %d fell, %d overlaps (at most %.1f ms), %d lost early, %d released and not free; "+
		"servers: %d killed, %d frozen, %d clocks jumped; processes: %d times cut off",
		v.leases, v.duplicates, v.falling, len(v.overlaps), ms(v.longest().lasted), v.early, v.kept, v.kills, v.freezes, v.jumps, v.cuts)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
