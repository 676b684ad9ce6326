package leases

import (
	"errors"
	"testing"

	"github.com/fencegate/fencegate/fence/leasing"
)

func TestTheReasonOfAWaitIsForgottenWithTheFirstOfTheLine(t *testing.T) {
	t.Parallel()
	var q Lines
	first := q.Enter("r")
	second := q.Enter("r")
	first.Waits(leasing.ErrUnavailable)
	if err := second.Why(); !errors.Is(err, leasing.ErrUnavailable) {
		t.Errorf("%v; want what the first has learned", err)
	}
	first.Leave()
	if err := second.Why(); !errors.Is(err, leasing.ErrHeld) {
		t.Errorf("%v; want that it is held, as the next one has not asked yet", err)
	}
	second.Leave()
}
