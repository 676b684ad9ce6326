package main

import (
	"slices"
	"testing"
	"time"

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
		if !m.Run.Soak {
			if _, err := fault.Plan(fault.Wish{Length: time.Minute, Only: m.Run.Faults}); err != nil {
				t.Errorf("%s: %v", m.Name, err)
			}
		}
		jumps := len(m.Run.Faults) == 0 || slices.Contains(m.Run.Faults, "redis") || slices.Contains(m.Run.Faults, "redis-clock")
		if slices.Contains(m.Run.Expect, table.Overlap) && jumps {
			t.Errorf("%s: overlaps say nothing where clocks jump", m.Name)
		}
	}
}
