package testenv

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// patience is how long Eventually waits. No test measures it: on a busy machine everything takes longer.
const patience = time.Minute

// Eventually polls until a condition holds, and fails the test after a minute. A condition that returns an error holds
// when the error is nil; the failure shows the last error.
func Eventually[Condition func() bool | func() error](t testing.TB, what string, holds Condition) {
	t.Helper()
	if err := waitFor(patience, holds); err != nil {
		t.Fatalf("not within %v: %s: %v", patience, what, err)
	}
}

var errStillNot = errors.New("it still does not hold")

// waitFor returns nil when the condition holds, or its last error when the time is over.
func waitFor[Condition func() bool | func() error](within time.Duration, holds Condition) error {
	check, ok := any(holds).(func() error)
	if !ok {
		check = func() error {
			if any(holds).(func() bool)() {
				return nil
			}
			return errStillNot
		}
	}
	tick, limit := time.NewTicker(5*time.Millisecond), time.NewTimer(within)
	defer tick.Stop()
	defer limit.Stop()
	calls := 0
	for {
		calls++
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-limit.C:
			return fmt.Errorf("%w, at the last of %d looks", err, calls)
		}
	}
}
