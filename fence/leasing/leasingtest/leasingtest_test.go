package leasingtest_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/fencegate/fencegate/fence/leasing"
	"github.com/fencegate/fencegate/fence/leasing/leasingtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestASourceInMemoryFollowsTheRules(t *testing.T) {
	t.Parallel()
	leasingtest.RunInBubbles(t, func(testing.TB) leasingtest.Open { return newBoard("").open })
}

// Each of these sources breaks one rule, and the suite detects it.
func TestTheRulesCatchASourceThatBreaksThem(t *testing.T) {
	t.Parallel()
	for broken, rule := range map[string]string{
		"two holders":                           "OneHolderAtATime",
		"held by nobody in particular":          "OneHolderAtATime",
		"the same token again":                  "TokensAreUniqueAndRise",
		"one seal for all":                      "SealsDifferAndResourcesAreIndependent",
		"release wakes nobody":                  "ReleaseWakesAWaiter",
		"last come, first served":               "CallersOfOneProcessTakeTurns",
		"waits for releases only":               "WaitEndsWhenTheLeaseDoes",
		"leases never end":                      "WaitEndsWhenTheLeaseDoes",
		"ends before its deadline":              "WaitEndsWhenTheLeaseDoes",
		"waits for ever":                        "WaitEndsWithTheContext",
		"gives up early":                        "WaitEndsWithTheContext",
		"does not say why it waited":            "WaitEndsWithTheContext",
		"deaf to an ended context":              "AnEndedContextAcquiresNothing",
		"a release that an ended context stops": "AnEndedContextAcquiresNothing",
		"a deadline beyond the TTL":             "DeadlineIsWithinTheTTL",
		"extends nothing":                       "ExtendMovesTheDeadline",
		"revives leases":                        "ALeaseThatIsOverIsNeverRevived",
		"anybody's release":                     "AStaleRefTouchesNothing",
		"any input":                             "BadInputIsRefused",
		"gives what is not armed":               "TheFenceIsArmedBeforeTheLeaseIsGiven",
		"arms a seal of its own":                "TheCallersSealIsArmed",
		"gives a seal that is not armed":        "TheCallersSealIsArmed",
		"stays below the fence":                 "TokensExceedWhatTheFenceRecords",
		"keeps what could not be armed":         "AFailedArmGivesTheResourceBack",
		"ends no grant":                         "AReleaseEndsTheGrantAndThenFreesTheResource",
		"frees before it ends":                  "AReleaseEndsTheGrantAndThenFreesTheResource",
		"keeps what could not be ended":         "AReleaseEndsTheGrantAndThenFreesTheResource",
		"in an order of its own":                "SeveralComeInTheCallersOrder",
		"keeps what it got":                     "SeveralAreAcquiredAllOrNone",
		"tries several once":                    "SeveralWaitForTheirHolders",
		"sees no token":                         "InspectShowsTheHolder",
		"open after close":                      "CloseRefusesAndKeepsLeases",
		"leases end with their source":          "CloseRefusesAndKeepsLeases",
	} {
		t.Run(broken, func(t *testing.T) {
			t.Parallel()
			at := slices.IndexFunc(leasingtest.Rules, func(r leasingtest.Rule) bool { return r.Name == rule })
			if at < 0 {
				t.Fatalf("%s is no rule", rule)
			}
			synctest.Test(t, func(t *testing.T) {
				if passes(t, leasingtest.Rules[at], newBoard(broken).open) {
					t.Errorf("%s passes with a source of which we know: %s", rule, broken)
				}
			})
		})
	}
}

// passes runs a rule without reporting its failures, and returns whether it passed.
func passes(t *testing.T, rule leasingtest.Rule, open leasingtest.Open) bool {
	t.Helper()
	aside := &aside{TB: t}
	var done sync.WaitGroup
	done.Go(func() { // Fatal ends the goroutine
		defer aside.cleanUp()
		rule.Check(aside, func(a leasing.Armer) leasing.Source { return open(a) })
	})
	done.Wait()
	aside.mu.Lock()
	defer aside.mu.Unlock()
	t.Logf("%s: %q", rule.Name, aside.said)
	return len(aside.said) == 0
}

// aside is a test that records its failures without reporting them.
type aside struct {
	testing.TB

	mu       sync.Mutex
	said     []string
	cleanups []func()
}

func (a *aside) Helper() {}

func (a *aside) Cleanup(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cleanups = append(a.cleanups, f)
}

func (a *aside) cleanUp() {
	a.mu.Lock()
	all := a.cleanups
	a.mu.Unlock()
	for _, f := range all {
		f()
	}
}

func (a *aside) say(text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.said = append(a.said, text)
}

func (a *aside) Error(args ...any)                 { a.say(fmt.Sprint(args...)) }
func (a *aside) Errorf(format string, args ...any) { a.say(fmt.Sprintf(format, args...)) }

func (a *aside) Fatal(args ...any) {
	a.Error(args...)
	runtime.Goexit()
}

func (a *aside) Fatalf(format string, args ...any) {
	a.Errorf(format, args...)
	runtime.Goexit()
}
