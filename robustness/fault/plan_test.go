package fault

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// plans calls each with the plans of many seeds and rounds, of every length that a run may have.
func plans(t *testing.T, w Wish, each func(t *testing.T, plan []Event, w Wish)) {
	t.Helper()
	for seed := range uint64(60) {
		for round := range 5 {
			w.Seed, w.Round = seed, round
			plan, err := Plan(w)
			if err != nil {
				t.Fatal(err)
			}
			each(t, plan, w)
		}
	}
}

func wish() Wish { return Wish{Length: 45 * time.Second} }

func TestAPlanFollowsFromItsSeed(t *testing.T) {
	t.Parallel()
	w := wish()
	seen := map[string]bool{}
	plans(t, w, func(t *testing.T, plan []Event, w Wish) {
		again, err := Plan(w)
		if err != nil || !slices.Equal(plan, again) {
			t.Fatalf("seed %d, round %d: %v, then %v (%v)", w.Seed, w.Round, plan, again, err)
		}
		var text strings.Builder
		for _, e := range plan {
			text.WriteString(e.String() + "\n")
		}
		if seen[text.String()] {
			t.Fatalf("seed %d, round %d: the plan of another", w.Seed, w.Round)
		}
		seen[text.String()] = true
	})
}

func TestAnEventIsReadAsItIsPrinted(t *testing.T) {
	t.Parallel()
	plans(t, wish(), func(t *testing.T, plan []Event, _ Wish) {
		for _, e := range plan {
			if again, err := ParseEvent(e.String()); err != nil || again != e {
				t.Fatalf("%q is read as %v: %v", e, again, err)
			}
		}
	})
	for _, line := range []string{
		"", "1s redis-kill for 2s", "1s nothing for 2s seed 00", "x redis-kill for 2s seed 00", "1s redis-kill for 2s seed g",
	} {
		if e, err := ParseEvent(line); err == nil {
			t.Errorf("%q is read as %v", line, e)
		}
	}
}

func TestEveryFaultIsPlannedAndCombined(t *testing.T) {
	t.Parallel()
	for _, async := range []bool{false, true} {
		w := wish()
		w.Async = async
		count, together, rounds, events := map[string]int{}, 0, 0, 0
		plans(t, w, func(_ *testing.T, plan []Event, _ Wish) {
			rounds++
			events += len(plan)
			for i, e := range plan {
				count[e.Fault]++
				if i > 0 && e.At < plan[i-1].At+plan[i-1].For {
					together++
				}
			}
		})
		for _, f := range All {
			if count[f.Name] == 0 {
				t.Errorf("async %v: no plan has %s", async, f.Name)
			}
		}
		t.Logf("async %v: %d rounds, %d events, %d of them while another lasted: %v", async, rounds, events, together, count)
		if events < 8*rounds || together < events/5 || together > events*4/5 {
			t.Errorf("async %v: %d events in %d rounds, %d of them while another lasted", async, events, rounds, together)
		}
		if failovers := count["pg-failover"]; failovers < rounds/20 || failovers > rounds/3 {
			t.Errorf("async %v: %d failovers in %d rounds", async, failovers, rounds)
		}
	}
}

func TestEveryFaultIsOverWhenTheRoundIs(t *testing.T) {
	t.Parallel()
	for _, length := range []time.Duration{10 * time.Second, 30 * time.Second, 2 * time.Minute} {
		w := wish()
		w.Length = length
		plans(t, w, func(t *testing.T, plan []Event, w Wish) {
			for i, e := range plan {
				f, ok := lookup(e.Fault)
				if !ok || e.end() > w.Length || e.For < f.Shortest.Truncate(time.Millisecond) || e.For > f.Longest {
					t.Fatalf("%s: for %v to %v, in a round of %v", e, f.Shortest, f.Longest, w.Length)
				}
				if i > 0 && e.At < plan[i-1].At {
					t.Fatalf("%s comes before %s", plan[i-1], e)
				}
			}
		})
	}
}

// overlap reports whether both events may have effects at one time.
func overlap(a, b Event) bool { return a.At < b.end() && b.At < a.end() }

func TestNoPlanBreaksARule(t *testing.T) {
	t.Parallel()
	for _, async := range []bool{false, true} {
		w := wish()
		w.Async, w.Length = async, time.Minute
		plans(t, w, func(t *testing.T, plan []Event, _ Wish) {
			failovers, rolling := 0, 0
			for i, a := range plan {
				failovers += strings.Count(a.Fault, "pg-failover")
				rolling += strings.Count(a.Fault, "rolling")
				for _, b := range plan[i+1:] {
					checkPair(t, a, b, async)
				}
			}
			if failovers > 1 || rolling > 1 {
				t.Fatalf("%d failovers and %d rolling restarts in one round", failovers, rolling)
			}
		})
	}
}

// beside lists faults that may run during a rolling restart, because they do not keep the servers from coming back.
var beside = []string{"client", "revoke", "session-end", "rules", "sweep", "verify", "nodes-sweep", "disk-full"}

// checkPair checks the rules with independent code, for two events of which a begins first.
func checkPair(t *testing.T, a, b Event, async bool) {
	t.Helper()
	server := func(e Event) bool {
		return strings.HasPrefix(e.Fault, "pg-") && e.Fault != "pg-terminate" || e.Fault == "rolling-pg" ||
			strings.HasSuffix(e.Fault, "/postgres-postgres")
	}
	if server(a) && server(b) && b.At < a.end() {
		t.Fatalf("%s, and during it %s", a, b)
	}
	for _, e := range [][2]Event{{a, b}, {b, a}} {
		if strings.HasPrefix(e[0].Fault, "rolling") && overlap(a, b) &&
			!isAny(e[1].Fault, beside) {
			t.Fatalf("%s, and during it %s", e[0], e[1])
		}
	}
	if b.Fault != "pg-failover" {
		return
	}
	forgets := []string{"redis-kill", "redis-older", "redis-empty", "redis-flush", "nodes-sweep"}
	behind := a.Fault == "pg-terminate" || a.Fault == "pg-standby-freeze" || a.Fault == "pg-crash" ||
		strings.HasSuffix(a.Fault, "/postgres-postgres")
	switch since := b.At - a.end(); {
	case async && a.Fault == "sweep" && since < 10*time.Second,
		async && isAny(a.Fault, forgets) && since < 5*time.Second,
		!async && behind && since < 8*time.Second:
		t.Fatalf("async %v: %s, and %v after its end %s", async, a, since, b)
	}
}

func TestAPlanHasOnlyWhatIsWished(t *testing.T) {
	t.Parallel()
	w := wish()
	w.Only = []string{"redis", "net-hold", "revoke"}
	plans(t, w, func(t *testing.T, plan []Event, _ Wish) {
		if len(plan) == 0 {
			t.Fatal("an empty plan")
		}
		for _, e := range plan {
			if !strings.HasPrefix(e.Fault, "redis-") && !strings.HasPrefix(e.Fault, "net-hold/") && e.Fault != "revoke" {
				t.Fatalf("%s was not wished", e)
			}
		}
	})
	w.Only = []string{"pg-failover"}
	plans(t, w, func(t *testing.T, plan []Event, _ Wish) {
		if len(plan) != 1 || plan[0].Fault != "pg-failover" {
			t.Fatalf("a failover was wished: %v", plan)
		}
	})
	w.Only = []string{"redis", "red"}
	if plan, err := Plan(w); err == nil {
		t.Errorf("faults called red are planned: %v", plan)
	}
}

func TestAPlanHasOnlyWhatTheClusterCan(t *testing.T) {
	t.Parallel()
	w := wish()
	w.Lacks = []Need{NeedsBlobs, NeedsDisk, NeedsStandby}
	plans(t, w, func(t *testing.T, plan []Event, _ Wish) {
		for _, e := range plan {
			if strings.HasSuffix(e.Fault, "-blobs") || isAny(e.Fault, []string{"blobs", "disk-full", "pg-failover", "pg-standby-freeze", "rolling-pg"}) {
				t.Fatalf("the cluster can't do %s", e)
			}
		}
	})
	w.Only = []string{"disk-full"}
	if plan, err := Plan(w); err == nil {
		t.Errorf("the cluster can't do %v", plan)
	}
}
