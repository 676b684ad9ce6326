// Package leasingtest has the rules of a source of leases as tests. A source that passes them can be used by the
// gateway.
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

// Group creates a fresh, empty group of the source's servers or tables, and removes it when t ends.
type Group func(t testing.TB) Open

// Open opens another source on the group, as another process would. armer may be nil. The rules close it. Its leases
// must be able to live for [TTL].
type Open func(armer leasing.Armer) leasing.Source

// TTL is how long the leases of most rules live. It is longer than the rules take, also on a busy machine.
const TTL = time.Minute

// short is the TTL of leases that expire during a rule.
const short = 700 * time.Millisecond

// patience bounds the wait for things that should happen soon. A test's t can shorten it.
func patience(t testing.TB) time.Duration {
	if own, ok := t.(interface{ Patience() time.Duration }); ok {
		return own.Patience()
	}
	return 20 * time.Second
}

// Rule is one requirement of a source.
type Rule struct {
	Name  string
	Check func(t testing.TB, open Open)
}

// Rules are all rules.
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

// source opens a source that is closed at the end of the rule.
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

// take acquires a free resource. It retries if a short TTL ran out during the acquisition, as on a busy machine.
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

// eventually polls, because a release may take a moment to arrive.
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

// higher fails unless a token exceeds the one before.
func higher(t testing.TB, got, before fence.Token) {
	t.Helper()
	if got <= before {
		t.Errorf("token %d after %d: it must rise", got, before)
	}
}
