package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/robustness/judge"
	"github.com/fencegate/fencegate/robustness/run"
)

// A run is what its flags say, or it is refused.
func TestFlagsThatWouldBeIgnoredAreRefused(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"-redis 2", "-redis 7", "-lock postgres -redis 5", "-mutant retention-off -only publish", "-mutant retention-off -balancer",
	} {
		if err := runOne(t.Context(), strings.Fields(args)); !errors.Is(err, errUsage) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// What is unsafe ends with 1, also beside what is slow.
func TestTheExitCodeTellsASlowRunFromABrokenPromise(t *testing.T) {
	t.Parallel()
	found := func(kinds ...judge.Kind) error {
		e := &run.FoundError{}
		for _, kind := range kinds {
			e.Findings = append(e.Findings, judge.Finding{Kind: kind})
		}
		if !errors.Is(e, run.ErrFound) {
			t.Errorf("%v is not ErrFound", e)
		}
		return e
	}
	unchecked := fmt.Errorf("%w: no history", run.ErrUnchecked)
	for _, c := range []struct {
		err  error
		code int
		text string
	}{
		{found(judge.Late, judge.NotFree, judge.Late), 3, "slow: nothing unsafe; 2 late, 1 not-free, and the machine was fast enough"},
		{found(judge.NotRecovered, judge.Leak), 3, "slow: nothing unsafe; 1 not-recovered, 1 leak, and the machine was fast enough"},
		{found(judge.Late, judge.Stale), 1, "a promise was broken: 1 late, 1 stale"},
		{found(judge.Broken), 1, "a promise was broken: 1 broken"},
		{errors.Join(found(judge.Late), unchecked), 1, "slow: nothing unsafe; 1 late, and the machine was fast enough\nthe run could not check: no history"},
		{unchecked, 1, "the run could not check: no history"},
		{errors.New("no server"), 1, "no server"},
		{fmt.Errorf("what?\n%w", errUsage), 64, "what?\n" + usage},
	} {
		if got := code(c.err); got != c.code || c.err.Error() != c.text {
			t.Errorf("code %d, want %d: %v", got, c.code, c.err)
		}
	}
}
