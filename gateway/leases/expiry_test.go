package leases

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/clock"
	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/gateway/activity"
)

// elsewhere is what the lock and the fence know of leases, whichever gateway changed them.
type elsewhere struct {
	leasing.Source

	mu   sync.Mutex
	ends map[leasing.Ref]clock.Instant // of locks
	over map[leasing.Ref]bool          // grants that were ended
	away error
}

func (e *elsewhere) Inspect(_ context.Context, resources ...string) (all []leasing.Inspection, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, resource := range resources {
		ins := leasing.Inspection{Resource: resource}
		for ref, end := range e.ends {
			if ref.Resource == resource && !end.Passed() {
				ins.Locked, ins.Owner, ins.TTL = true, ref.Owner, end.Left()
			}
		}
		all = append(all, ins)
	}
	return all, e.away
}

func (e *elsewhere) current(context.Context, []string) (map[string]fence.Token, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	tokens := map[string]fence.Token{}
	for ref := range e.ends {
		if !e.over[ref] {
			tokens[ref.Resource] = max(tokens[ref.Resource], ref.Token)
		}
	}
	return tokens, e.away
}

// watchedLease is one gateway's view of a lease of 30 s on "r", with token 5.
type watchedLease struct {
	*elsewhere

	clock *clock.Clock

	ledger *Ledger
	ref    leasing.Ref
	events []string
}

const leaseOf = 30 * time.Second

func watch(t *testing.T) *watchedLease {
	t.Helper()
	w := &watchedLease{clock: clock.New(), elsewhere: &elsewhere{ends: map[leasing.Ref]clock.Instant{}, over: map[leasing.Ref]bool{}}, ledger: NewLedger(), ref: leasing.Ref{Resource: "r", Owner: "o", Token: 5}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Expiry{w.ledger, w.elsewhere, w.clock, w.current, func(e activity.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, fmt.Sprintf("%s %s %d", e.Kind, e.Resource, e.Presented))
		}}.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	time.Sleep(time.Millisecond) // not at the instant of a look
	end := w.clock.Now().Add(leaseOf)
	w.happens(func() { w.ends[w.ref] = end })
	w.ledger.Note(w.ref, end)
	return w
}

// happens is a change at another gateway, or at the nodes.
func (w *watchedLease) happens(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// tells wants these events, at a time after the acquisition.
func (w *watchedLease) tells(t *testing.T, after time.Duration, want string) {
	t.Helper()
	time.Sleep(after)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if got := strings.Join(w.events, ", "); got != want {
		t.Errorf("events %q, want %q", got, want)
	}
}

func TestALeaseThatRanOutIsReportedOnceWithinASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watch(t)
		w.tells(t, leaseOf-time.Millisecond, "")
		w.tells(t, expiryEvery+time.Millisecond, "expired r 5")
		w.tells(t, time.Hour, "expired r 5")
		if last := w.ledger.armed("r", 6); last != 5 {
			t.Errorf("the next token supersedes %d, want 5", last)
		}
	})
}

func TestALeaseThatAnotherGatewayExtendedIsReportedAtItsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watch(t)
		time.Sleep(20 * time.Second)
		w.happens(func() { w.ends[w.ref] = w.clock.Now().Add(time.Minute) })
		w.tells(t, time.Minute-time.Millisecond, "")
		w.tells(t, expiryEvery+time.Millisecond, "expired r 5")
	})
}

// Neither does the next one here supersede it.
func TestALeaseThatAnotherGatewayReleasedHasNotRunOut(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]time.Duration{"before its deadline": time.Second, "after it": time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			w := watch(t)
			w.happens(func() { w.ends[w.ref], w.over[w.ref] = clock.Instant{}, true })
			w.tells(t, after, "")
			if last := w.ledger.armed("r", 6); last != 0 {
				t.Errorf("%s: the next token supersedes %d", name, last)
			}
			w.tells(t, time.Hour, "")
		})
	}
}

func TestALeaseThatRanOutWhileTheLockWasAwayIsReportedOnceItIsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := watch(t)
		w.happens(func() { w.away = errors.New("no quorum") })
		w.tells(t, time.Hour, "")
		w.happens(func() { w.away = nil })
		w.tells(t, expiryEvery, "expired r 5")
	})
}
