package fault

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// plans calls each with the plans of many seeds and rounds.
func plans(t *testing.T, w Wish, each func(plan []Event, w Wish)) {
	t.Helper()
	for seed := range uint64(60) {
		for round := range 5 {
			w.Seed, w.Round = seed, round
			plan, err := Plan(w)
			if err != nil {
				t.Fatal(err)
			}
			each(plan, w)
		}
	}
}

func TestAPlanFollowsFromItsSeedAndEndsWithItsRound(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, length := range []time.Duration{10 * time.Second, 30 * time.Second, 2 * time.Minute} {
		plans(t, Wish{Length: length}, func(plan []Event, w Wish) {
			again, err := Plan(w)
			text := fmt.Sprint(plan)
			if err != nil || !slices.Equal(plan, again) || seen[text] {
				t.Fatalf("seed %d, round %d: %v, then %v (%v); or the plan of another", w.Seed, w.Round, plan, again, err)
			}
			seen[text] = true
			for i, e := range plan {
				f, ok := byName()[e.Fault]
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

func TestEveryFaultIsPlannedAndCombinedAndNoRuleBroken(t *testing.T) {
	t.Parallel()
	for _, async := range []bool{false, true} {
		count, together, rounds, events := map[string]int{}, 0, 0, 0
		plans(t, Wish{Length: 45 * time.Second, Async: async}, func(plan []Event, _ Wish) {
			rounds++
			events += len(plan)
			heavy := map[string]int{}
			for i, e := range plan {
				count[e.Fault]++
				first, _, _ := strings.Cut(strings.TrimPrefix(e.Fault, "pg-"), "-")
				heavy[first]++
				if i > 0 && e.At < plan[i-1].At+plan[i-1].For {
					together++
				}
				for _, b := range plan[i+1:] {
					checkPair(t, e, b, async)
				}
			}
			if heavy["failover"] > 1 || heavy["rolling"] > 1 {
				t.Fatalf("%d failovers and %d rolling restarts in one round", heavy["failover"], heavy["rolling"])
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
		if strings.HasPrefix(e[0].Fault, "rolling") && a.At < b.end() && b.At < a.end() && !is(e[1].Fault, beside...) {
			t.Fatalf("%s, and during it %s", e[0], e[1])
		}
	}
	if b.Fault != "pg-failover" {
		return
	}
	behind := a.Fault == "pg-terminate" || a.Fault == "pg-standby-freeze" || a.Fault == "pg-crash" || strings.HasSuffix(a.Fault, "/postgres-postgres")
	switch since := b.At - a.end(); {
	case async && a.Fault == "sweep" && since < 10*time.Second,
		async && is(a.Fault, "redis-kill", "redis-older", "redis-empty", "redis-flush", "nodes-sweep") && since < 5*time.Second,
		!async && behind && since < 8*time.Second:
		t.Fatalf("async %v: %s, and %v after its end %s", async, a, since, b)
	}
}

func TestAPlanHasOnlyWhatIsWishedAndWhatTheClusterCan(t *testing.T) {
	t.Parallel()
	w := Wish{Length: 45 * time.Second, Only: []string{"redis", "net-hold", "revoke"}}
	plans(t, w, func(plan []Event, _ Wish) {
		for _, e := range plan {
			if !strings.HasPrefix(e.Fault, "redis-") && !strings.HasPrefix(e.Fault, "net-hold/") && e.Fault != "revoke" {
				t.Fatalf("%s was not wished", e)
			}
		}
		if len(plan) == 0 {
			t.Fatal("an empty plan")
		}
	})
	w.Only = []string{"pg-failover"}
	plans(t, w, func(plan []Event, _ Wish) {
		if len(plan) != 1 || plan[0].Fault != "pg-failover" {
			t.Fatalf("a failover was wished: %v", plan)
		}
	})
	w.Only, w.Lacks = nil, []Need{NeedsBlobs, NeedsDisk, NeedsStandby, NeedsRedis, NeedsBalancer}
	plans(t, w, func(plan []Event, _ Wish) {
		for _, e := range plan {
			if strings.Contains(e.Fault, "redis") || strings.Contains(e.Fault, "balancer") || strings.HasSuffix(e.Fault, "-blobs") ||
				is(e.Fault, "blobs", "disk-full", "nodes-sweep", "pg-failover", "pg-standby-freeze", "rolling-pg") {
				t.Fatalf("the cluster can't do %s", e)
			}
		}
	})
	for _, only := range [][]string{{"redis", "red"}, {"disk-full"}} {
		w.Only = only
		if plan, err := Plan(w); err == nil {
			t.Errorf("%v is planned: %v", only, plan)
		}
	}
}
