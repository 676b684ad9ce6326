package judge

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// text formats a report for a test's message.
func text(t *testing.T, r Report) string {
	t.Helper()
	var b strings.Builder
	if err := Format(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestACleanHistoryHasNoFinding(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		for _, async := range []bool{false, true} {
			t.Run(fmt.Sprintf("seed %d, async %v", seed, async), func(t *testing.T) {
				t.Parallel()
				ev := simulate(seed, 1, 3000, async)
				ev.Budget = 20 * time.Second
				r := Examine(ev)
				if len(r.Findings) > 0 {
					t.Fatal(text(t, r))
				}
				if r.Counts.OverBudget > 0 && !async {
					t.Errorf("%d calls over the budget", r.Counts.OverBudget)
				}
				if async && (len(ev.Lost) == 0 || len(r.Counts.Excused) == 0) {
					t.Errorf("nothing was excused: %v", r.Counts)
				}
				if r.Counts.Overlaps == 0 || r.Counts.Refusals["ZF001"] == 0 || r.Counts.Refusals["held"] == 0 {
					t.Errorf("the history is too tame: %+v", r.Counts)
				}
			})
		}
	}
}
