package terminal

import (
	"errors"
	"testing"
)

// An INT that comes while the command starts is left to it, though it may not exist yet.
func TestAnInterruptDuringTheStartReachesTheCommand(t *testing.T) {
	t.Parallel()
	for _, comes := range []bool{true, false} {
		var s Shared
		interrupted := false
		err := s.start(func() error {
			if !s.runs.Load() {
				t.Error("an INT would end this process")
			}
			if comes {
				s.left.Add(1)
			}
			return nil
		}, func() { interrupted = true })
		if err != nil || interrupted != comes || !s.runs.Load() {
			t.Errorf("an INT came: %t; the command got it: %t, %v", comes, interrupted, err)
		}
	}
	var s Shared
	if failed := errors.New("no such file"); !errors.Is(s.start(func() error { return failed }, nil), failed) || s.runs.Load() {
		t.Error("a command that did not start keeps the terminal")
	}
}
