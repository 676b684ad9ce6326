package leases

import (
	"errors"
	"testing"

	"github.com/fencegate/fencegate/fence/leasing"
)

func TestTheReasonOfAWaitIsForgottenWithTheFirstOfTheLine(t *testing.T) {
	t.Parallel()
	var q lines
	first := q.enter("r")
	second := q.enter("r")
	q.waits("r", leasing.ErrUnavailable)
	if err := q.why("r"); !errors.Is(err, leasing.ErrUnavailable) {
		t.Errorf("%v; want what the first has learned", err)
	}
	q.leave("r", first)
	if err := q.why("r"); !errors.Is(err, leasing.ErrHeld) {
		t.Errorf("%v; want that it is held, as the next one has not asked yet", err)
	}
	q.leave("r", second)
}
