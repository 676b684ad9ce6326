package lock_test

import (
	"flag"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var (
	simSeeds = flag.Int("sim.seeds", 10, "how many seeds TestSimulation runs")
	simSeed  = flag.Uint64("sim.seed", 0, "the only seed that TestSimulation runs; 0: the first ones from 1 on")
	simTrace = flag.Bool("sim.trace", false, "TestSimulation logs the whole trace of its seed")
)

// simTail is how many lines of a failed seed's trace are printed.
const simTail = 60

// Nodes that delay, lose and hold messages, stop, restart, lose their data and jump in time; Lockers that are cut off
// and suspended; and callers that acquire, wait, extend, release and give up. A seed decides all of it, so a seed that
// fails repeats exactly. sim_check_test.go has the rules.
func TestSimulation(t *testing.T) {
	t.Parallel()
	if *simSeed != 0 {
		simulated(t, *simSeed)
		return
	}
	var next atomic.Uint64
	var sum simCounts
	var mu sync.Mutex
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for !t.Failed() {
				seed := next.Add(1)
				if seed > uint64(*simSeeds) {
					return
				}
				counts := simulated(t, seed)
				mu.Lock()
				sum.add(counts)
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	t.Log(sum)
	if !t.Failed() && *simSeeds >= 100 {
		sum.enough(t)
	}
}

// A seed is worth something only if it repeats. About one in sixty does not yet, none of these: if a waiter leaves a home
// at the moment at which it asks the same node for a lock, the scheduler decides which of the two gets the pooled
// connection and which makes one.
func TestASeedOfTheSimulationRepeatsExactly(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= uint64(max(3, *simSeeds/50)); seed++ {
		var first, again *sim
		synctest.Test(t, func(t *testing.T) { first = simulate(t, seed) })
		synctest.Test(t, func(t *testing.T) { again = simulate(t, seed) })
		for i := range max(len(first.trace), len(again.trace)) {
			if i >= len(first.trace) || i >= len(again.trace) || first.trace[i] != again.trace[i] {
				t.Errorf("seed %d differs at line %d:\nfirst %s\nagain %s", seed, i, excerpt(first.trace, i), excerpt(again.trace, i))
				break
			}
		}
	}
}

func excerpt(trace []string, at int) string {
	return strings.Join(trace[min(len(trace), max(0, at-simExcerpt)):min(len(trace), at+simExcerpt)], "\n")
}

const simExcerpt = 5

// simulated runs a seed and reports what it breaks.
func simulated(t *testing.T, seed uint64) simCounts {
	t.Helper()
	var s *sim
	begun := time.Now()
	synctest.Test(t, func(t *testing.T) { s = simulate(t, seed) })
	if *simTrace {
		t.Logf("seed %d in %v:\n%s", seed, time.Since(begun), strings.Join(s.trace, "\n"))
	}
	if s.broken != "" {
		tail := s.trace[max(0, len(s.trace)-simTail):]
		t.Errorf("seed %d: %s\n%s\nplan: %+v\nrepeat: go test ./lock -run 'TestSimulation$' -sim.seed=%d -sim.trace", seed, s.broken, strings.Join(tail, "\n"), s.plan, seed)
	}
	return s.counts
}

// simCounts say what happened, because a simulation in which nothing happens breaks no rule.
type simCounts struct {
	seeds, messages, acquired, extended, released, refused, lost, readmitted, waited, faults int
	simulated                                                                                time.Duration
}

func (c *simCounts) add(o simCounts) {
	c.seeds++
	c.messages += o.messages
	c.acquired += o.acquired
	c.extended += o.extended
	c.released += o.released
	c.refused += o.refused
	c.lost += o.lost
	c.readmitted += o.readmitted
	c.waited += o.waited
	c.faults += o.faults
	c.simulated += o.simulated
}

func (c simCounts) String() string {
	return fmt.Sprintf("%d seeds, %v: %d messages, %d acquisitions (%d after a wait), %d extensions, %d releases, %d refusals, %d leases lost, %d faults, %d readmissions",
		c.seeds, c.simulated.Round(time.Second), c.messages, c.acquired, c.waited, c.extended, c.released, c.refused, c.lost, c.faults, c.readmitted)
}

func (c simCounts) enough(t *testing.T) {
	t.Helper()
	for name, per := range map[string]int{
		"acquisitions": c.acquired, "extensions": c.extended, "releases": c.released, "acquisitions after a wait": c.waited,
		"refusals": c.refused, "leases lost": c.lost, "faults": c.faults, "readmissions": c.readmitted * 4,
	} {
		if per < c.seeds/2 {
			t.Errorf("only %d %s in %d seeds", per, name, c.seeds)
		}
	}
}
