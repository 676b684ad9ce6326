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
	"bytes"
	"context"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
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

const (
	// short is the TTL of leases that end during a rule. The acquisition of one, and its extension, take much less.
	short = 5 * time.Second
	// patience bounds the wait for things that should happen soon.
	patience = 20 * time.Second
)

// Rule is one requirement of a source.
type Rule struct {
	Name  string
	Check func(t testing.TB, open Open)
	Arms  bool // it is about the Armer
}

// Rules are all rules.
var Rules = []Rule{
	{"OneHolderAtATime", oneHolder, false},
	{"TokensAreUniqueAndRise", tokensRise, false},
	{"TokensRiseUnderContention", contended, false},
	{"SealsDifferAndResourcesAreIndependent", independent, false},
	{"ReleaseFreesAtOnce", releaseFrees, false},
	{"ReleaseWakesAWaiter", releaseWakes, false},
	{"CallersOfOneProcessTakeTurns", turns, false},
	{"WaitEndsWhenTheLeaseDoes", waitForExpiry, false},
	{"WaitEndsWithTheContext", waitForContext, false},
	{"AnEndedContextAcquiresNothing", endedContext, false},
	{"DeadlineIsWithinTheTTL", deadline, false},
	{"ExtendMovesTheDeadline", extendMoves, false},
	{"AnyProcessExtendsAndReleases", anyProcess, false},
	{"ALeaseThatIsOverIsNeverRevived", neverRevived, false},
	{"AStaleRefTouchesNothing", staleRef, false},
	{"BadInputIsRefused", badInput, false},
	{"TheFenceIsArmedBeforeTheLeaseIsGiven", arms, true},
	{"TheCallersSealIsArmed", callersSeal, true},
	{"TokensExceedWhatTheFenceRecords", exceeds, true},
	{"AFailedArmGivesTheResourceBack", failedArm, true},
	{"AReleaseEndsTheGrantAndThenFreesTheResource", ends, true},
	{"SeveralComeInTheCallersOrder", several, false},
	{"SeveralAreArmed", severalArmed, true},
	{"SeveralAreAcquiredAllOrNone", allOrNone, false},
	{"SeveralWaitForTheirHolders", severalWait, false},
	{"InspectShowsTheHolder", inspects, false},
	{"CloseRefusesAndKeepsLeases", closes, false},
}

// Run checks every rule, each on a group of its own, in parallel.
func Run(t *testing.T, group Group) {
	t.Helper()
	run(t, Rules, func(t *testing.T, rule Rule) { rule.Check(t, group(t)) })
}

// RunOwnFence is Run for a source whose service raises the fence by itself: it has no Armer.
func RunOwnFence(t *testing.T, group Group) {
	t.Helper()
	own := slices.DeleteFunc(slices.Clone(Rules), func(r Rule) bool { return r.Arms })
	run(t, own, func(t *testing.T, rule Rule) { rule.Check(t, group(t)) })
}

// RunInBubbles is Run with each rule in a bubble of testing/synctest, for a source whose servers are in this process's
// memory. group is called inside.
func RunInBubbles(t *testing.T, group Group) {
	t.Helper()
	run(t, Rules, func(t *testing.T, rule Rule) {
		synctest.Test(t, func(t *testing.T) { rule.Check(t, group(t)) })
	})
}

func run(t *testing.T, rules []Rule, check func(t *testing.T, rule Rule)) {
	t.Helper()
	for _, rule := range rules {
		t.Run(rule.Name, func(t *testing.T) {
			t.Parallel()
			check(t, rule)
		})
	}
}

// ways are both ways to acquire what is free.
var ways = map[string]leasing.Wait{"try": leasing.AtOnce, "acquire": leasing.UntilDone}

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

// take acquires a free resource.
func take(t testing.TB, s leasing.Source, r leasing.Request) leasing.Lease {
	t.Helper()
	lease, err := leasing.One(s.Acquire(t.Context(), leasing.AtOnce, r))
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

// takeOnceFree acquires a resource that nobody holds, as soon as what ended its last lease has arrived.
func takeOnceFree(t testing.TB, s leasing.Source, r leasing.Request) leasing.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	lease, err := leasing.One(s.Acquire(ctx, leasing.UntilDone, r))
	if err != nil {
		t.Fatalf("acquire %q, which should be free: %v", r.Resource, err)
	}
	return lease
}

// eventually polls a state.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(patience); !ok(); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// started starts a call, and returns when it waits for something, or has ended. A call that waits for a lease stands in
// the line of its process by then.
func started(t testing.TB, call func()) {
	t.Helper()
	begun := make(chan []byte, 1)
	go func() {
		begun <- goroutine()
		call()
	}()
	name := <-begun
	eventually(t, "the call waits", func() bool { return waits(name) })
}

// goroutine names the calling goroutine as a stack trace does: "goroutine 7 ".
func goroutine() []byte {
	stack := make([]byte, 64)
	stack = stack[:runtime.Stack(stack, false)]
	return stack[:bytes.IndexByte(stack, '[')]
}

// waits reports whether a goroutine waits for another or for a message, or has ended.
func waits(name []byte) bool {
	stacks := make([]byte, 1<<16)
	for n := len(stacks); n == len(stacks); {
		stacks = make([]byte, 2*n)
		n = runtime.Stack(stacks, true)
	}
	_, state, alive := bytes.Cut(stacks, append([]byte("\n"), name...))
	return !alive || slices.ContainsFunc([]string{"[select", "[chan ", "[IO wait", "[sleep", "[sync.Cond.Wait"}, func(waiting string) bool {
		return bytes.HasPrefix(state, []byte(waiting))
	})
}

// higher fails unless a token exceeds the one before.
func higher(t testing.TB, got, before fence.Token) {
	t.Helper()
	if got <= before {
		t.Errorf("token %d after %d: it must rise", got, before)
	}
}
