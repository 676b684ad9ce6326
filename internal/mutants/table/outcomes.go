package table

// exclusion is the guarantee of a lock while clocks run at the same speed. The runs' faults set no clock.
var exclusion = []string{Overlap}

// outcomes are bugs of leases and of outcomes. PostgreSQL decides by tokens, so a lock with two holders does not
// damage data; overlaps reveal it.
var outcomes = []Mutant{
	{
		Name: "quarantine-off",
		What: "A node that lost its data is admitted at once, and grants what its last run has granted to " +
			"somebody else. It takes a majority of nodes that lose their data within one lease.",
		File: "lock/internal/admission/admit.go",
		Old:  "a := Admission{Nonce: g.NewNonce(),",
		New:  "longest = 0\n\ta := Admission{Nonce: g.NewNonce(),",
		Run:  &Run{Faults: []string{"redis-flush", "redis-empty", "redis-kill"}, Expect: exclusion, Within: rarely},
	},
	{
		Name: "admitted-with-older-data",
		What: "A node that restarts with data of before is given its scripts again, by whoever connects, instead " +
			"of being admitted: locks that it has forgotten are granted again. It takes a majority of nodes that " +
			"come back with older data within one lease.",
		File: "lock/internal/node/node.go",
		Old:  "\tn.bound = Bind(nonce)\n",
		New: `	n.bound = Bind(nonce)
	for _, text := range boundTexts {
		_ = n.client.ScriptLoad(context.Background(), bindText(*text, nonce)).Err()
	}
`,
		Run: &Run{Faults: []string{"redis-older", "redis-kill"}, Expect: exclusion, Within: seldom},
	},
	{
		Name: "unlock-without-owner",
		What: "A release deletes the lock of whoever has it by now. A client that pauses until past its lease and " +
			"then releases is enough.",
		File: "lock/internal/node/scripts/release.lua",
		Old:  "if not held or string.sub(held, 1, 32) ~= ARGV[1] then",
		New:  "if not held then",
		Also: []Change{{
			File: "lock/internal/node/scripts/batch.lua",
			Old:  "if held and sub(held, 1, 32) == ARGV[first + i] then",
			New:  "if held then",
		}},
		Run: &Run{Surfaces: direct, Faults: []string{"client-stop"}, Expect: exclusion, Within: tries},
	},
	{
		Name: "deadline-from-the-answer",
		What: "The HTTP client counts a lease from the answer and not from before the request, so it believes in " +
			"it for longer than the nodes do. It takes answers that come late.",
		File: "client/deadline.go",
		Old:  "Deadline{sent.Add(",
		New:  "Deadline{sent.Now().Add(",
		Run: &Run{
			Surfaces: []string{"http-direct", "http-port", "http-sql"}, Faults: []string{"net-delay/client-gateway", "net-hold/client-gateway"},
			Expect: exclusion, Within: tries,
		},
	},
	{
		Name: "deadline-from-the-end-of-arming",
		What: "A lease counts from when the fence was armed, and not from before the first message to a node. It " +
			"takes a PostgreSQL that takes long, as one that stands still.",
		File: "lock/attempt.go",
		Old:  "ctx, cancel := a.deadline.Bound(ctx)",
		New:  "ctx, cancel := context.WithTimeout(ctx, time.Minute)",
		Also: []Change{{
			File: "lock/attempt.go",
			Old: `	case err == nil && a.deadline.Passed():
		return fmt.Errorf("acquire %q: the TTL of %v ended while the fence was raised: %w", a.resource, a.o.ttl, ErrLost)
	case err == nil:
		return nil`,
			New: `	case err == nil:
		a.deadline = a.l.clock.Now().Add(a.l.validity(a.o.ttl))
		return nil`,
		}},
		Run: &Run{
			Surfaces: []string{"library"}, Faults: []string{"pg-freeze", "net-hold/client-postgres", "net-delay/client-postgres"},
			Expect: exclusion, Within: rarely,
		},
	},
	{
		Name: "release-told-before-done",
		What: "A release is reported as done at once, and carried out 300 ms later. A client that asks for the " +
			"resource again at once, and is refused because of the released lease, is enough.",
		File: "lock/locker.go",
		Old:  "\tr := l.newRound(node.OpRelease, \"release\", ref.Resource)\n",
		New: `	time.AfterFunc(300*time.Millisecond, func() {
		l.giveBack(ref.Resource, ref.Owner, l.group.LongestTTL(), l.all())
	})
	if ref.Owner != "" {
		return nil
	}
	r := l.newRound(node.OpRelease, "release", ref.Resource)
`,
		Run: &Run{
			Surfaces: []string{"library", "http-direct", "http-sql", "s3-small"}, Faults: []string{"client-stutter"},
			Expect: []string{"not-free"}, Within: tries,
		},
	},
	{
		Name: "lost-commit-told-as-not-done",
		What: "A COMMIT whose answer was lost is reported as not done, and the client believes it. It " +
			"takes connections that are cut after the server has answered, or sessions that end while they commit.",
		File: "fence/pgfence/intx.go",
		Old:  "return fmt.Errorf(\"commit under %s: %w\", core.GrantNames(grants), m.unknown(err))",
		New:  "return fmt.Errorf(\"commit under %s: %w\", core.GrantNames(grants), err)",
		Run: &Run{
			Surfaces: []string{"library", "publish"}, Faults: answersLost,
			Expect: []string{"failed-but-done", "refused-but-done", "lost-update"}, Within: rarely,
		},
	},
	{
		Name: "unknown-commit-run-again",
		What: "A transaction whose outcome is unknown is run once more: what was done is done twice, or the result of " +
			"the second run is reported. It takes connections that are cut after the server has answered a COMMIT.",
		File: "fence/pgfence/intx.go",
		Old:  "\terr := inTx(ctx, db, opts.TxOptions, grants, fn)\n",
		New: `	err := inTx(ctx, db, opts.TxOptions, grants, fn)
	if errors.Is(err, fence.ErrUnknown) {
		err = inTx(ctx, db, opts.TxOptions, grants, fn)
	}
`,
		Run: &Run{
			Surfaces: []string{"library"}, Faults: answersLost,
			Expect: []string{"done-twice", "failed-but-done", "refused-but-done"}, Within: rarely,
		},
	},
}

var answersLost = []string{"net-cut-after/client-postgres", "pg-terminate", "pg-crash"}
