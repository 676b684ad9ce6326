package core

import (
	"errors"
	"testing"

	"github.com/fencegate/fencegate/fence"
)

// A retry may fail for a reason of its own. Then the first attempt, whose answer was lost, is still unknown.
func TestARetryThatFailsSettlesTheFirstAttemptOnlyIfItSaysWhatIsRecorded(t *testing.T) {
	t.Parallel()
	lost, readOnly := errors.New("connection lost"), errors.New("read-only transaction")
	for _, c := range []struct {
		again   error
		settles bool
	}{
		{nil, true},
		{&fence.NotRaisedError{Resource: "orders", Offered: 1, Recorded: 2}, true},
		{&fence.StaleError{Resource: "orders", Presented: 1, Recorded: 2}, true},
		{&fence.UndrainedError{Resource: "orders", Token: 1}, true},
		{&fence.UndrainedError{Resource: "orders"}, false},
		{&fence.NotEndedError{Resource: "orders", Token: 1}, false},
		{&fence.NeverIssuedError{Resource: "orders", Presented: 1}, false},
		{readOnly, false},
	} {
		calls := 0
		answers := func(answered bool, err error) func() (bool, error) {
			return func() (bool, error) { calls++; return answered, err }
		}
		err := Twice("arm", answers(false, lost), answers(true, c.again))
		if errors.Is(err, fence.ErrUnknown) == c.settles || !errors.Is(err, c.again) || calls != 2 {
			t.Errorf("%v: %v", c.again, err)
		}
		if err := Twice("arm", answers(true, c.again), nil); errors.Is(err, fence.ErrUnknown) || !errors.Is(err, c.again) {
			t.Errorf("at first: %v", err)
		}
	}
}

// A revocation stands whatever ends its drain.
func TestARevocationWhoseDrainFailedIsUndrained(t *testing.T) {
	t.Parallel()
	away := errors.New("no connection")
	err := Drained("orders", 7, away)
	if undrained, ok := errors.AsType[*fence.UndrainedError](err); !ok || undrained.Token != 7 || !errors.Is(err, away) {
		t.Errorf("%v", err)
	}
	for _, same := range []error{nil, fence.ErrUnknown, &fence.NotRaisedError{Resource: "orders", Offered: 7, Recorded: 8}, &fence.UndrainedError{Resource: "orders", Token: 7}} {
		if err := Drained("orders", 7, same); !errors.Is(err, same) || same == nil && err != nil {
			t.Errorf("%v: %v", same, err)
		}
	}
}
