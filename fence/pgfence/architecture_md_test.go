package pgfence_test

import (
	"strings"
	"testing"
)

// adversaries lists the claims of the threat model in docs/architecture.md, row by row, with the tests that prove
// them. The tests of fence_locker are in lock/pglock.
var adversaries = []standing{
	{"write what is guarded (`race_test.go`", "TestNoWriteLandsAfterArmReturned"},
	{"`guard_test.go`)", "TestEveryWayToWriteIsGuarded"},
	{"write guarded tables, present a grant with `fence.use`, change or list fences", "TestRightsAreAsNarrowAsTheRoles"},
	{"learn whether a resource is known, and its recorded token", "TestThePageSaysWhatIsSo"},
	{"present a grant that was not issued", "TestOnlyTheIssuedGrantPasses"},
	{"forge a stamp", "TestAStampCannotBeForged"},
	{"protect or unprotect", "TestAWriterDoesNotProtectAndAProtectorDoesNotWrite"},
	{"delay writers whose locks it reads in `pg_locks`, by up to 5 seconds each", "TestAnExclusiveLockOnTheCurrentGrantIsNamedToItsWriter"},
	{"raise their fences (`hostile_test.go`)", "TestOnlyWritersMayRaiseByPresenting"},
	{"run code with the fence's rights (`attackercode_test.go`)", "TestNoCodeOfAnAttackersRunsUnderACall"},
	{"take off a part of a guard", "TestEventTriggersRefuseWhatWeakens"},
	{"or give its column's name to another", "TestEventTriggersRefuseAnotherColumnUnderAGuardsName"},
	{"take off any guard of its tables, which `fence.uncovered` lists", "TestUncoveredMissesNoGuardThatWasDroppedOrWeakened"},
	{"run code as a superuser through a superuser's DDL", "TestEventTriggersRunNothingOfTheOwnersWithASuperusersRights"},
	{"change fences but by arming, ending, revoking and retiring", "TestRightsAreAsNarrowAsTheRoles"},
	{"end a session whose process and client port it names, not a superuser's", "TestASessionIsEndedByItsPortAndProcess"},
}

func TestTheThreatModelStandsOnTestsThatAreThere(t *testing.T) {
	t.Parallel()
	_, model, _ := strings.Cut(says(t, "architecture.md"), "## Threat model")
	model, _, _ = strings.Cut(model, "## What it assumes")
	standOn(t, model, adversaries)
}
