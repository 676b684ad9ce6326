package main

import (
	"slices"
	"testing"

	"github.com/fencegate/fencegate/internal/mutants/table"
	"github.com/fencegate/fencegate/robustness/client"
	"github.com/fencegate/fencegate/robustness/fault"
)

// A run that plays nothing, or asks for a finding that cannot be one, catches nothing.
func TestEachMutantsRunCanFindIt(t *testing.T) {
	t.Parallel()
	for _, m := range table.All {
		if m.Run == nil {
			continue
		}
		for _, s := range m.Run.Surfaces {
			if !slices.Contains(client.Surfaces, s) {
				t.Errorf("%s: there is no surface %s", m.Name, s)
			}
		}
		if m.Run.Soak {
			continue
		}
		wish := fault.Wish{Length: mutantRound, Only: m.Run.Faults, Lacks: []fault.Need{fault.NeedsBlobs}}
		if m.Run.PostgresLeases {
			wish.Lacks = append(wish.Lacks, fault.NeedsRedis)
		}
		if !m.Run.Balancer {
			wish.Lacks = append(wish.Lacks, fault.NeedsBalancer)
		}
		silent := 0 // a round may have none
		for ; wish.Round < 100; wish.Round++ {
			plan, err := fault.Plan(wish)
			if err != nil {
				t.Fatalf("%s: %v", m.Name, err)
			}
			if len(plan) == 0 {
				silent++
			}
			for _, e := range plan {
				clock, failover := e.Fault == "redis-clock", m.Run.PostgresLeases && e.Fault == "pg-failover"
				if slices.Contains(m.Run.Expect, table.Overlap) && (clock || failover) {
					t.Fatalf("%s: overlaps say nothing after %s", m.Name, e.Fault)
				}
			}
		}
		if silent > wish.Round/2 {
			t.Errorf("%s: %d of %d rounds play nothing", m.Name, silent, wish.Round)
		}
	}
}
