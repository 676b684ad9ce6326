package testenv

import (
	"errors"
	"testing"
	"time"
)

func TestAWaitEndsWithTheConditionOrSaysWhatItLastSaw(t *testing.T) {
	t.Parallel()
	looks := 0
	Eventually(t, "three looks", func() bool { looks++; return looks == 3 })
	if looks != 3 {
		t.Errorf("looked %d times", looks)
	}
	last := errors.New("two of three")
	if err := waitFor(20*time.Millisecond, func() error { return last }); !errors.Is(err, last) {
		t.Errorf("got %v, want %v", err, last)
	}
	if err := waitFor(20*time.Millisecond, func() bool { return false }); !errors.Is(err, errStillNot) {
		t.Errorf("got %v", err)
	}
}
