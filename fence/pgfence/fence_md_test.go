package pgfence_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// These tests check docs/fence.md: its SQL runs in its order, [tries] tests each statement of the page that no other
// test proves, and the files and figures that it names exist.

const repository = "../.."

// page is a page of the documentation.
func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// says is a page's text as one line, so that a quotation may span lines.
func says(t *testing.T, name string) string {
	t.Helper()
	return strings.Join(strings.Fields(page(t, name)), " ")
}

var sqlBlock = regexp.MustCompile("(?s)\n```sql\n(.*?)```")

func TestTheSQLOfThePageRuns(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.exec(t, `GRANT CREATE ON SCHEMA public TO PUBLIC`)
	owner := connect(t, w.pg.As(t, "fence_protector"))
	w.exec(t, `CREATE SCHEMA shop AUTHORIZATION `+pgx.Identifier{owner.Config().User}.Sanitize())
	run(t, owner, `CREATE TABLE orders (id bigint PRIMARY KEY, written_by bigint)`, `CREATE TABLE shop.parcels (id bigint)`)
	held := w.acquire(t, orders, 34)
	hash := held.Seal.Hash()
	gateway, superuser, writer := connect(t, w.pg.GatewayURL), connect(t, w.pg.URL), w.session(t)
	gid := "page-" + strconv.FormatInt(counter.Add(1), 10) + w.pg.Database
	blocks := sqlBlock.FindAllStringSubmatch(page(t, "fence.md"), -1)
	for i, c := range []struct {
		begins string
		as     *pgx.Conn
		with   *strings.Replacer
		before func()
	}{
		{"SELECT fence.protect(", owner, strings.NewReplacer(), func() {}},
		{"SELECT 'process '", superuser, strings.NewReplacer("<time>", "now"), func() {}},
		{"SELECT relation, refused", writer, strings.NewReplacer(), func() {}},
		{"SELECT * FROM fence.end_grants", gateway, strings.NewReplacer("<seal hash>", pgBytes(hash)), func() {}},
		{"SELECT * FROM fence.retire", gateway, strings.NewReplacer(), func() {}},
		{"SELECT gid, prepared, owner", writer, strings.NewReplacer("'gid'", "'"+gid+"'"), func() {
			run(t, writer, `BEGIN; SELECT pg_current_xact_id(); PREPARE TRANSACTION '`+gid+`'`)
		}},
		{"SELECT fence.install_event_triggers", superuser, strings.NewReplacer(), func() {}},
	} {
		if len(blocks) <= i || !strings.HasPrefix(blocks[i][1], c.begins) {
			t.Fatalf("SQL block %d of the page does not begin with %q: tell this test who runs it", i+1, c.begins)
		}
		c.before()
		for line := range strings.SplitSeq(strings.TrimSpace(blocks[i][1]), "\n") {
			run(t, c.as, c.with.Replace(line))
		}
	}
	if len(blocks) != 7 {
		t.Errorf("the page has %d SQL blocks: tell this test who runs the others", len(blocks))
	}
	if !value[bool](t, w, `SELECT ended_at IS NOT NULL FROM fence.fences WHERE resource = $1`, orders) {
		t.Error("the block that ends a grant has not ended it")
	}
	if n := value[int](t, w, `SELECT count(*) FROM pg_prepared_xacts WHERE gid = $1`, gid); n != 0 {
		t.Error("the block that rolls back a prepared transaction has not done so")
	}
}

// pgBytes is a bytea literal.
func pgBytes(b []byte) string {
	var hex strings.Builder
	for _, one := range b {
		hex.WriteString(strconv.FormatUint(0x100+uint64(one), 16)[1:])
	}
	return `'\x` + hex.String() + `'::bytea`
}

func TestThePageSaysWhatIsSo(t *testing.T) {
	t.Parallel()
	text := says(t, "fence.md")
	for _, c := range tries {
		t.Run(c.says, func(t *testing.T) {
			t.Parallel()
			if !strings.Contains(text, c.says) {
				t.Error("the page does not say so any more: change this case with it")
			}
			c.try(t, setup(t))
		})
	}
}

// standing is a piece of a page's text, and the test that proves it.
type standing struct{ piece, test string }

// stands lists the statements of the page that other tests prove.
var stands = []standing{
	{"without a grant, in replica mode, with a stale, a forged", "TestEveryWayToWriteIsGuarded"},
	{"at every point of a stale transaction (before its first statement, between statements, at COMMIT)", "TestRacesAtEveryPoint"},
	{"`TRUNCATE`, partitions and inheritance children written directly", "TestProtectCoversPartitionsAndChildren"},
	{"subscriptions (`schemas_uncovered_test.go`, `rows_stamp_test.go`)", "TestASubscriptionPassesTheGuard"},
	{"Messages show a name that looks like a seal as `[seal]`", "TestNoRefusalRepeatsASealThatWasGivenAsAName"},
	{"each row of a table with a resource per row or a stamp is judged by itself", "TestRowsOfAStatementThatIsStoppedAreJudged"},
	{"`fence.uncovered` lists the tables that were protected before the language came", "TestALanguageThatComesLaterIsNamed"},
	{"A write keeps the lock of its grant until its transaction ends, whatever fails after it", "TestALockStaysWithWhatWasWrittenUnderIt"},
	{"That transaction may commit without a grant after `fence.protect` has returned", "TestAnUnguardedWriteOfACursorOutlivesProtecting"},
	{"the right to protect is apart from the right to write", "TestAWriterDoesNotProtectAndAProtectorDoesNotWrite"},
	{"Both the old and the new version of a row must be covered", "TestEachRowNeedsTheGrantOfItsOwnResource"},
	{"after `BEFORE` triggers and generated columns", "TestTheStoredRowIsJudged"},
	{"Several grants may cover one statement, each its rows", "TestSeveralGrantsCoverTheirRows"},
	{"The expression must be immutable and use only what PostgreSQL itself has", "TestAnExpressionUsesWhatPostgreSQLBrings"},
	{"no letter outside ASCII but in quotes, and no name of a temporary type", "TestAnExpressionsTextNamesNothingOfItsAuthors"},
	{"The expression, the rows and the functions of their types run with", "TestNoCodeOfAnAttackersRunsUnderATrigger"},
	{"Every login may call the functions that guards call, so these accept only names and tokens", "TestFunctionsWithTheFencesRightsTakeFacts"},
	{"A row trigger on each partition checks these rows, for `INSERT` and `DELETE`", "TestWhatMergeMovesBelowAPartitionIsJudged"},
	{"Partitions that were attached later need `fence.protect` again", "TestAPartitionThatIsAttachedLaterIsNamedOrGuarded"},
	{"Each write that a guard refuses is counted for its table", "TestRefusalsAreCountedPerTable"},
	{"refuses nothing, waits for nobody", "TestReportModeLogsAndRefusesNothing"},
	{"and holds no lock", "TestReportModeHoldsNoLock"},
	{"It is verified after the statement, so it can't be forged", "TestAStampCannotBeForged"},
	{"A subscription keeps the publisher's stamps", "TestASubscriptionKeepsResourcesAndStamps"},
	{"A view with `INSTEAD OF` triggers can be protected", "TestAViewWithTriggersOfItsOwnCanBeProtected"},
	{"When a lease is released, its grant ends. Each check then answers `ZF001`", "TestAnEndedGrantIsRefusedOnEveryWay"},
	{"A transaction at REPEATABLE READ or SERIALIZABLE that began before", "TestASnapshotFromBeforeTheEndIsStale"},
	{"Ending waits for no writer", "TestEndingDrainsNobody"},
	{"A release never ends another grant", "TestEndingTouchesNoOtherGrant"},
	{"It is a row's HOT update in a transaction of its own", "TestEndingIsAHOTUpdate"},
	{"An end whose answer was lost is harmless", "TestAnUnknownEndHarmsNobody"},
	{"Tokens up to the floor can't be armed, and a write under one gets `ZF001`", "TestARetiredFenceRefusesItsStaleTokens"},
	{"Retiring skips a fence with a writer in flight", "TestWhatIsInUseIsNotRetired"},
	{"It waits a second at most", "TestRetireGivesUpWherePatternsAreLocked"},
	{"A pattern records the highest floor at the time when it is added", "TestTheFloorOfUnsealedTokensIsThatOfTheirPattern"},
	{"through the session's end and a crash", "TestAPreparedTransactionHoldsItsGrantThroughACrash"},
	{"So its writes become visible before the next holder starts, or never", "TestAPreparedTransactionIsThereBeforeArmReturnsOrNever"},
	{"a guard, or one of the triggers that belong to it, that was dropped", "TestUncoveredMissesNoGuardThatWasDroppedOrWeakened"},
	{"Then tables that join a protected table or schema get their guards", "TestEventTriggersCoverWhatJoins"},
	{"fail with SQLSTATE `55000`", "TestEventTriggersRefuseWhatWeakens"},
	{"that create a child of a protected and an unprotected parent", "TestEventTriggersRefuseAChildOfAnUnprotectedParentToo"},
	{"Guards go as a whole", "TestGuardsGoAsAWhole"},
	{"so they run no code of `fence_owner`'s with more", "TestEventTriggersRunNothingOfTheOwnersWithASuperusersRights"},
	{"`migrate down` removes them, or says who must", "TestEventTriggersOutliveTheSchema"},
	{"takes off every guard and leaves the tables as they were", "TestUninstallingLeavesNothing"},
}

var fileName = regexp.MustCompile("`([a-z0-9_/]+(?:_test\\.go|\\.pml))`")

func TestThePageStandsOnTestsThatAreThere(t *testing.T) {
	t.Parallel()
	standOn(t, says(t, "fence.md"), stands)
}

// standOn checks that the tests that prove a text exist, and the files that it names.
func standOn(t *testing.T, text string, stands []standing) {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	for _, file := range files {
		code, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tests.Write(code)
	}
	for _, s := range stands {
		if !strings.Contains(text, s.piece) {
			t.Errorf("the page does not say %q any more: change this case with it", s.piece)
		}
		if !strings.Contains(tests.String(), "\nfunc "+s.test+"(t ") {
			t.Errorf("%q stands on %s, which is gone", s.piece, s.test)
		}
	}
	for _, m := range fileName.FindAllStringSubmatch(text, -1) {
		_, here := os.Stat(m[1])
		if _, there := os.Stat(filepath.Join(repository, m[1])); here != nil && there != nil {
			t.Errorf("the page names %s, which is gone", m[1])
		}
	}
}

// The page repeats some ratios of bench/fence/README.md.
func TestThePagesCostsAreThoseOfTheBenchmarks(t *testing.T) {
	t.Parallel()
	cost := says(t, "fence.md")
	_, cost, _ = strings.Cut(cost, "## What it costs")
	goals := page(t, "../bench/fence/README.md")
	for _, goal := range []string{
		"INSERT, fast commits, constant", "INSERT, fast commits, per row", "INSERT, slow commits, constant", "INSERT, slow commits, per row",
		"10 statements, fast commits, constant", "10 statements, fast commits, per row",
		"10 statements, slow commits, constant", "10 statements, slow commits, per row",
		"COPY of 100,000 rows, constant", "COPY of 100,000 rows, per row",
	} {
		row := regexp.MustCompile(`(?m)^\| ` + goal + ` \|[^|]*\|[^|]*\| ([0-9.]+) \|`).FindStringSubmatch(goals)
		if row == nil {
			t.Errorf("bench/fence/README.md has no line for %s", goal)
		} else if !strings.Contains(cost, row[1]) {
			t.Errorf("%s is %s in bench/fence/README.md, which fence.md does not say: %s", goal, row[1], cost)
		}
	}
}

// adversaries lists the claims of the threat model in docs/architecture.md, row by row, with the tests that prove
// them. The tests of fence_locker are in lock/pglock.
var adversaries = []standing{
	{"write what is guarded (`arm_race_test.go`", "TestNoWriteLandsAfterArmReturned"},
	{"`check_guard_test.go`)", "TestEveryWayToWriteIsGuarded"},
	{"write guarded tables, present a grant with `fence.use`, change or list fences", "TestRightsAreAsNarrowAsTheRoles"},
	{"learn whether a resource is known, and its recorded token", "TestThePageSaysWhatIsSo"},
	{"present a grant that was not issued", "TestOnlyTheIssuedGrantPasses"},
	{"forge a stamp", "TestAStampCannotBeForged"},
	{"protect or unprotect", "TestAWriterDoesNotProtectAndAProtectorDoesNotWrite"},
	{"delay writers whose locks it reads in `pg_locks`, by up to 5 seconds each", "TestAnExclusiveLockOnTheCurrentGrantIsNamedToItsWriter"},
	{"raise their fences (`locks_hostile_test.go`)", "TestOnlyWritersMayRaiseByPresenting"},
	{"run code with the fence's rights (`judge_attackercode_test.go`)", "TestNoCodeOfAnAttackersRunsUnderACall"},
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
