// Package leasingtest holds the rules of a source of leases as tests. What
// passes them can stand behind the gateway.
//
//	func TestConformance(t *testing.T) {
//		leasingtest.Run(t, func(t testing.TB) leasingtest.Open {
//			db := freshDatabase(t) // one group for each rule
//			return func(armer leasing.Armer) leasing.Source { return mysource.New(db, armer) }
//		})
//	}
package leasingtest

import (
	"errors"
	"testing"
	"time"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/leasing"
)

// Group makes a fresh, empty group of whatever keeps the leases, and removes it
// when t ends.
type Group func(t testing.TB) Open

// Open makes one more source on the group, as another process would. armer may
// be nil. The rules close it. Its leases must be able to live for [TTL].
type Open func(armer leasing.Armer) leasing.Source

// TTL is how long the leases of most rules live: longer than the rules take,
// also on a busy machine.
const TTL = time.Minute

// short is the TTL of leases that a rule lets run out.
const short = 700 * time.Millisecond

// patience bounds what must happen soon. A test's t may have less of it than a
// busy machine needs.
func patience(t testing.TB) time.Duration {
	if own, ok := t.(interface{ Patience() time.Duration }); ok {
		return own.Patience()
	}
	return 20 * time.Second
}

// Rule is one thing that a source must do.
type Rule struct {
	Name  string
	Check func(t testing.TB, open Open)
}

// Rules are all of them.
var Rules = []Rule{
	{"OneHolderAtATime", oneHolder},
	{"TokensAreUniqueAndRise", tokensRise},
	{"TokensRiseUnderContention", contended},
	{"SealsDifferAndResourcesAreIndependent", independent},
	{"ReleaseFreesAtOnce", releaseFrees},
	{"ReleaseWakesAWaiter", releaseWakes},
	{"CallersOfOneProcessTakeTurns", turns},
	{"WaitEndsWhenTheLeaseDoes", waitForExpiry},
	{"WaitEndsWithTheContext", waitForContext},
	{"AnEndedContextAcquiresNothing", endedContext},
	{"DeadlineIsWithinTheTTL", deadline},
	{"ExtendMovesTheDeadline", extendMoves},
	{"AnyProcessExtendsAndReleases", anyProcess},
	{"ALeaseThatIsOverIsNeverRevived", neverRevived},
	{"AStaleRefTouchesNothing", staleRef},
	{"BadInputIsRefused", badInput},
	{"TheFenceIsArmedBeforeTheLeaseIsGiven", arms},
	{"TheCallersSealIsArmed", callersSeal},
	{"TokensExceedWhatTheFenceRecords", exceeds},
	{"AFailedArmGivesTheResourceBack", failedArm},
	{"AReleaseEndsTheGrantAndThenFreesTheResource", ends},
	{"SeveralAreArmedAndComeInTheCallersOrder", several},
	{"SeveralAreAcquiredAllOrNone", allOrNone},
	{"SeveralWaitForTheirHolders", severalWait},
	{"InspectShowsTheHolder", inspects},
	{"CloseRefusesAndKeepsLeases", closes},
}

// Run checks every rule, each on a group of its own, in parallel.
func Run(t *testing.T, group Group) {
	t.Helper()
	for _, rule := range Rules {
		t.Run(rule.Name, func(t *testing.T) {
			t.Parallel()
			rule.Check(t, group(t))
		})
	}
}

// source opens one that the rule's end closes.
func source(t testing.TB, open Open, armer leasing.Armer) leasing.Source {
	t.Helper()
	s := open(armer)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func request(ttl time.Duration) leasing.Request {
	return leasing.Request{Resource: "orders/1001", TTL: ttl, Holder: "worker-a"}
}

// take acquires what nobody holds. Where a short TTL has run out on the way, as on a
// busy machine, it tries again.
func take(t testing.TB, s leasing.Source, r leasing.Request) leasing.Lease {
	t.Helper()
	begun := time.Now()
	lease, err := s.TryAcquire(t.Context(), r)
	lost := false
	for errors.Is(err, leasing.ErrLost) && time.Since(begun) > r.TTL/2 || lost && errors.Is(err, leasing.ErrHeld) { // given back a moment later
		begun, lost = time.Now(), true
		lease, err = s.TryAcquire(t.Context(), r)
	}
	if err != nil {
		t.Fatalf("acquire %q: %v", r.Resource, err)
	}
	if lease.Grant.Resource != r.Resource || lease.Grant.Token <= 0 || lease.Grant.Seal.IsZero() || lease.Owner == "" {
		t.Fatalf("lease %v of owner %q: incomplete", lease.Grant, lease.Owner)
	}
	return lease
}

func release(t testing.TB, s leasing.Source, lease leasing.Lease) {
	t.Helper()
	if err := s.Release(t.Context(), lease.Ref()); err != nil {
		t.Fatalf("release: %v", err)
	}
}

// eventually polls: what is given back may travel for a moment.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(patience(t)); !ok(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("not within %v: %s", patience(t), what)
		}
	}
}

// higher fails where a token does not exceed the one before.
func higher(t testing.TB, got, before fence.Token) {
	t.Helper()
	if got <= before {
		t.Errorf("token %d after %d: it must rise", got, before)
	}
}
