package leases

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// errSilent is the error of a part that does not answer.
var errSilent = errors.New("silent")

func answerOf(ctx context.Context, err error) error {
	if errors.Is(err, errSilent) {
		<-ctx.Done()
		return ctx.Err()
	}
	return err
}

// lockSays is a source of leases that answers one question.
type lockSays struct {
	leasing.Source

	state leasing.Inspection
	err   error
}

func (l lockSays) Inspect(ctx context.Context, _ ...string) ([]leasing.Inspection, error) {
	return []leasing.Inspection{l.state}, answerOf(ctx, l.err)
}

// fenceSays is a fence that answers one question, and ends grants.
type fenceSays struct {
	record fence.Record
	err    error
	ended  []fence.Ending
}

func (f *fenceSays) Inspect(ctx context.Context, _ string) (fence.Record, error) {
	return f.record, answerOf(ctx, f.err)
}

func (f *fenceSays) End(ctx context.Context, e fence.Ending) error {
	f.ended = append(f.ended, e)
	return answerOf(ctx, f.err)
}

var (
	heldFor   = func(ttl time.Duration) lockSays { return lockSays{state: leasing.Inspection{Locked: true, TTL: ttl}} }
	free      = lockSays{}
	errBroken = errors.New("broken")
	errAway   = errors.New("the lock is away")
)

// A lease that ran out is over for the fence, too, before a write under it is refused.
func TestTheS3PortAsksTheLockHowLongALeaseIsHeld(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lock  lockSays
		fence error
		left  time.Duration
		is    error // nil: none
		ends  bool
		took  time.Duration
	}{
		"held":                            {lock: heldFor(20 * time.Second), left: 20 * time.Second},
		"about to end":                    {lock: heldFor(0), left: time.Millisecond},
		"held without an end":             {lock: heldFor(-1), left: time.Second},
		"it ran out":                      {lock: free, ends: true},
		"it ran out, and another came":    {lock: free, fence: &fence.StaleError{Resource: "r", Presented: 5, Recorded: 6}, ends: true},
		"it ran out, and is forgotten":    {lock: free, fence: &fence.NeverIssuedError{Resource: "r", Presented: 5}, ends: true},
		"it ran out, and the fence fails": {lock: free, fence: errBroken, ends: true, is: errBroken},
		"it ran out, and the fence hangs": {lock: free, fence: errSilent, ends: true, is: context.DeadlineExceeded, took: validityTimeout},
		"no quorum":                       {lock: lockSays{err: leasing.ErrUnavailable}, left: time.Second, is: errAway},
		"the lock hangs":                  {lock: lockSays{err: errSilent}, left: time.Second, is: errAway, took: validityTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &fenceSays{err: c.fence}
			began := time.Now()
			left, err := Validity{c.lock, f, errAway}.Remaining(t.Context(), "r", 5)
			if left != c.left || !errors.Is(err, c.is) || c.is == nil && err != nil || time.Since(began) != c.took {
				t.Errorf("%s: held for %v, %v, after %v; want %v, %v, after %v", name, left, err, time.Since(began), c.left, c.is, c.took)
			}
			if want := fmt.Sprint([]fence.Ending{{Resource: "r", Token: 5}}); c.ends != (len(f.ended) > 0) || c.ends && fmt.Sprint(f.ended) != want {
				t.Errorf("%s: ended %v", name, f.ended)
			}
		})
	}
}

// For reads under credentials that end with their lease, a lease is held while the fence and the lock say so. They are
// asked again after a second at the latest.
func TestTheS3PortAsksBothWhetherALeaseIsCurrent(t *testing.T) {
	t.Parallel()
	ended := time.Now()
	current := fence.Record{Resource: "r", Token: 5}
	for name, c := range map[string]struct {
		lock   lockSays
		record fence.Record
		fence  error
		left   time.Duration
		fails  bool
		took   time.Duration
	}{
		"held":                    {lock: heldFor(20 * time.Second), record: current, left: readsFor},
		"about to end":            {lock: heldFor(300 * time.Millisecond), record: current, left: 300 * time.Millisecond},
		"held without an end":     {lock: heldFor(-1), record: current, left: readsFor},
		"released":                {lock: heldFor(20 * time.Second), record: fence.Record{Token: 5, EndedAt: &ended}},
		"revoked, or another's":   {lock: heldFor(20 * time.Second), record: fence.Record{Token: 6}},
		"retired":                 {lock: heldFor(20 * time.Second), fence: fence.ErrNoFence},
		"it ran out":              {lock: free, record: current},
		"no quorum":               {lock: lockSays{err: leasing.ErrUnavailable}, record: current, left: time.Second},
		"no quorum, and released": {lock: lockSays{err: leasing.ErrUnavailable}, record: fence.Record{Token: 5, EndedAt: &ended}},
		"the lock hangs":          {lock: lockSays{err: errSilent}, record: current, left: time.Second, took: validityTimeout},
		"the fence fails":         {lock: heldFor(20 * time.Second), fence: errBroken, fails: true},
		"the fence hangs":         {lock: heldFor(20 * time.Second), fence: errSilent, fails: true, took: validityTimeout},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			left, err := Validity{c.lock, &fenceSays{record: c.record, err: c.fence}, errAway}.Current(t.Context(), "r", 5)
			if left != c.left || (err != nil) != c.fails || time.Since(began) != c.took {
				t.Errorf("%s: held for %v, %v, after %v; want %v, after %v", name, left, err, time.Since(began), c.left, c.took)
			}
		})
	}
}
