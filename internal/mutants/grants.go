package main

// grants has the safeguards of acquiring, extending and releasing, in the order of docs/model: tokens, exclusion, then
// what keeps leases from being lost or left behind.
var grants = []mutant{
	{
		name: "owner-only", what: "confirm does not ask for the counter",
		file: "lock/scripts/confirm.lua", test: "TestARepeatedAcquireDoesNotLetTwoAttemptsConfirmOneToken",
		old: "if math.max(tonumber(m[3] or '0'), tonumber(m[2])) > t then",
		new: "if false then",
	},
	{
		name: "counter-only", what: "confirm does not ask for the owner",
		file: "lock/scripts/confirm.lua", test: "TestConfirmFailsWhereTheLockIsAnothers",
		old: "if not held or string.sub(held, 1, 32) ~= ARGV[2] then",
		new: "if false then",
	},
	{
		name: "no-base", what: "confirm ignores the base",
		file: "lock/scripts/confirm.lua", test: "TestNothingIsConfirmedBelowTheBase",
		old: "math.max(tonumber(m[3] or '0'), tonumber(m[2])) > t",
		new: "tonumber(m[3] or '0') > t",
	},
	{
		name: "confirm-no-marker", what: "confirm ignores the marker",
		file: "lock/scripts/confirm.lua", test: "TestANodeDoesNothingForAnotherIncarnation",
		old: "if m[1] ~= '@NONCE@' then",
		new: "if '@NONCE@' == '' then",
	},
	{
		name: "acquire-no-marker", what: "a grant ignores the marker",
		file: "lock/scripts/acquire.lua", test: "TestANodeDoesNothingForAnotherIncarnation",
		old: "if m[1] ~= '@NONCE@' then",
		new: "if '@NONCE@' == '' then",
	},
	{
		name: "batch-no-marker", what: "a batch ignores the marker",
		file: "lock/scripts/batch.lua", test: "TestANodeDoesNothingForAnotherIncarnation",
		old: "local admitted = m[1] == '@NONCE@'",
		new: "local admitted = '@NONCE@' ~= ''",
	},
	{
		name: "extend-no-marker", what: "an extension ignores the marker",
		file: "lock/scripts/extend.lua", test: "TestANodeDoesNothingForAnotherIncarnation",
		old: "m[1] == '@NONCE@'",
		new: "'@NONCE@' ~= ''",
	},
	{
		name: "acquire-no-base", what: "a grant ignores the base",
		file: "lock/scripts/acquire.lua", test: "TestAcquisitionsCountOnFromTheBase",
		old: "math.max(tonumber(m[2]), tonumber(ARGV[4]))",
		new: "tonumber(ARGV[4])",
	},
	{
		name: "batch-no-base", what: "a batch ignores the base",
		file: "lock/scripts/batch.lua", test: "TestAcquisitionsCountOnFromTheBase",
		old: "floors and max(base, tonumber(ARGV[floors + i])) or base",
		new: "floors and tonumber(ARGV[floors + i]) or 0",
	},
	{
		name: "batch-no-base-floors", what: "a batch with floors ignores the base",
		file: "lock/scripts/batch.lua", test: "TestAcquisitionsCountOnFromTheBase",
		old: "max(base, tonumber(ARGV[floors + i]))",
		new: "tonumber(ARGV[floors + i])",
	},
	{
		name: "weak-quorum", what: "a quorum less one",
		file: "lock/locker.go", test: "TestADeadMajorityFailsAndItsReturnIsNoticed",
		old: "quorum:    len(cfg.Nodes)/2 + 1,",
		new: "quorum:    (len(cfg.Nodes) + 1) / 3,",
	},
	{
		name: "recreate", what: "a lock that is gone is extended",
		file: "lock/scripts/extend.lua", test: "TestExtensionNeverCreatesALockAgain",
		old: "elseif not held or string.sub(held, 1, 32)",
		new: "elseif held and string.sub(held, 1, 32)",
	},
	{
		name: "shortens-late", what: "a node shortens a lock",
		file: "lock/scripts/extend.lua", test: "TestAShorterExtensionShortensNoLock",
		old: "if redis.call('PTTL', KEYS[i + 1]) < ttl then",
		new: "if true then",
	},
	{
		name: "release-any", what: "a release deletes whoever's lock it finds",
		file: "lock/scripts/release.lua", test: "TestAForeignReferenceReleasesNothing",
		old: "if not held or string.sub(held, 1, 32) ~= ARGV[1] then",
		new: "if not held then",
	},
	{
		name: "batch-release-any", what: "a release in a batch deletes whoever's lock it finds",
		file: "lock/scripts/batch.lua", test: "TestABatchAnswersEachOpAsItsOwnScriptWould",
		old: "if held and sub(held, 1, 32) == ARGV[first + i] then",
		new: "if held then",
	},
	{
		name: "from-end", what: "validity counted from the last answer",
		file: "lock/attempt.go", test: "TestALeaseCountsFromBeforeItsFirstMessage",
		old: "\tgranted := r.yes >= l.quorum\n",
		new: "\ta.deadline = now().add(l.validity(a.o.ttl))\n\tgranted := r.yes >= l.quorum\n",
	},
	{
		name: "extension-from-end", what: "an extension counted from the last answer",
		file: "lock/extend.go", test: "TestALeaseCountsFromBeforeItsFirstMessage",
		old: "\terr = r.waitUntil(ctx, until)\n",
		new: "\terr = r.waitUntil(ctx, until)\n\tdeadline = now().add(l.validity(ttl))\n",
	},
	{
		name: "no-recheck", what: "no look at the deadline after arming",
		file: "lock/attempt.go", test: "TestALeaseThatRanOutWhileItWasArmedIsLost",
		old: "case err == nil && a.deadline.passed():",
		new: "case false:",
	},
	{
		name: "recorded-late", what: "the longest TTL is recorded after the nodes may grant it",
		file: "lock/longest.go", test: "TestALongerTTLIsRecordedBeforeANodeGrantsIt",
		old: "\trecord, err := l.recorded(ctx, ttl) // before any node hears of it\n",
		new: "\tfor i, st := range l.states(ctx) {\n\t\t_ = l.nodes[i].longer(ctx, st.incarnation, ttl)\n\t}\n\trecord, err := l.recorded(ctx, ttl)\n",
	},
	{
		name: "counted-late", what: "a round counts its answers whenever they come",
		file: "lock/attempt.go", test: "TestARoundCountsNoLateAnswer",
		old: "end := a.start.add(roundTime)",
		new: "end := a.start.add(time.Hour)",
	},
	{
		name: "repeat-shortens", what: "a first message that comes again shortens its lock",
		file: "lock/scripts/acquire.lua", test: "TestEveryScriptAnswersAlikeOnTheEmbeddedRedis",
		old: "if held and redis.call('PTTL', KEYS[2]) > tonumber(ARGV[3]) then",
		new: "if false then",
	},
	{
		name: "write-deadline", what: "a batch leaves its write deadline",
		file: "lock/node.go", test: "TestLeasesOfABurstAreReleasedAfterAQuietSecond",
		old: "\t\t_ = k.conn.SetWriteDeadline(time.Time{})\n",
		new: "",
	},
	{
		name: "no-resend", what: "a release whose link ended is not sent again",
		file: "lock/resend.go", test: "TestAReleaseWhoseAnswerWasLostIsSentAgain",
		old: "if o.kind != opRelease ||",
		new: "if true ||",
	},
	{
		name: "one-round", what: "an extension is made once",
		file: "lock/extend.go", test: "TestAnExtensionIsTriedAgainWhileItsLeaseHasTime",
		old: "if err == nil || !again {",
		new: "if err == nil || !again || failed == 0 {",
	},
	{
		name: "queue-is-silence", what: "waiting behind others counts as the node's silence",
		file: "lock/round.go", test: "TestANodeThatAnswersIsNotSilentToWhoeverIsQueued",
		old: "; signs != q.signs {",
		new: "; signs > 1<<31 {",
	},
	{
		name: "own-silence", what: "time in which the process did not run counts as the node's silence",
		file: "lock/connection.go", test: "TestAConnectionIsLookedAtOnceMoreAfterItsDeadline",
		old: "\t\t_ = n.link.conn.SetReadDeadline(time.Now().Add(extraTime))\n\t\treturn true\n",
		new: "\t\treturn false\n",
	},
	{
		name: "stopped-head", what: "a waiter that stands still keeps its place",
		file: "lock/scripts/wait.lua", test: "TestAWaiterThatStandsStillIsPassedOver",
		old: "math.abs(now - (seen or now)) <= tonumber(ARGV[4])",
		new: "true",
	},
}
