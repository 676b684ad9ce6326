package table

// surfaces are bugs that a surface of its own finds, or finds best: several resources at a time, repeated
// acquisitions, objects that are written once.
var surfaces = []Mutant{
	{
		Name: "list-without-lock",
		What: "The check of a list of grants reads the fence and locks nothing, so a transaction under several grants " +
			"that wrote before a lease ended commits after the next holder has read. A client that pauses before " +
			"COMMIT until past its lease is enough. Sessions with one grant are checked elsewhere.",
		File: grantsSQL, Function: "fence.fast_list",
		Old: "recorded := fence.fast_check(name, pg_catalog.split_part(pg_catalog.split_part(rest, ',', 1), '=', 2), true);",
		New: `SELECT f.token INTO recorded FROM fence.resources f
       WHERE f.resource OPERATOR(pg_catalog.=) name AND f.ended_at IS NULL AND f.token::pg_catalog.text
         OPERATOR(pg_catalog.=) pg_catalog.split_part(pg_catalog.split_part(pg_catalog.split_part(rest, ',', 1), '=', 2), '.', 1);`,
		Run: &Run{Surfaces: []string{"http-all"}, Faults: []string{"client-stop"}, MaxTTL: short, Expect: stale, Within: tries},
	},
	{
		Name: "others-not-renewed",
		What: "While an acquisition of several waits for one lock, it counts the others as renewed and leaves them to " +
			"their TTL: the lease is granted with locks that are free. Contention for short leases is enough.",
		File: "lock/acquire.go",
		Old:  "deadline, err := a.l.extend(ctx, leasing.Ref{Resource: a.resource, Owner: a.owner}, a.o.ttl, a.deadline)",
		New:  "deadline, err := a.l.clock.Now().Add(a.l.validity(a.o.ttl)), ctx.Err()",
		Run:  &Run{Surfaces: []string{"http-all"}, Faults: []string{"client-stutter"}, MaxTTL: short, Expect: exclusion, Within: rarely},
	},
	{
		Name: "run-releases-some",
		What: "`run` with several resources releases the second half of its leases only, and ends as after a release of " +
			"all. A client that asks for the resource again at once, and is refused because of the released lease, is " +
			"enough.",
		File: "internal/runner/runner.go",
		Old:  "together(leases, func(lease client.Lease) error {\n\t\terr := cfg.Client.Release(",
		New:  "together(leases[len(leases)/2:], func(lease client.Lease) error {\n\t\terr := cfg.Client.Release(",
		Run:  &Run{Surfaces: []string{"run-several"}, Faults: []string{"client-stutter"}, Expect: []string{"not-free"}, Within: rarely},
	},
	{
		Name: "repeat-not-extended",
		What: "A gateway that finds the lease of an earlier request with the same Idempotency-Key answers with the full " +
			"time to live, and does not extend the lock. A holder that asks again to renew is enough.",
		File: "gateway/api/acquire.go",
		Old:  "\t\"github.com/fencegate/fencegate/fence/leasing\"\n",
		New:  "\t\"github.com/fencegate/fencegate/fence/clock\"\n\t\"github.com/fencegate/fencegate/fence/leasing\"\n",
		Also: []Change{{
			File: "gateway/api/acquire.go",
			Old:  "lease.Deadline, err = a.calls.extend(ctx, ref, min(max(r.TTL, state.TTL), cmp.Or(a.calls.cfg.MaxTTL, left)), left)",
			New:  "_, lease.Deadline, err = left, clock.New().Now().Add(r.TTL), ctx.Err()",
		}},
		Run: &Run{Surfaces: []string{"http-repeat"}, Faults: []string{"client-stutter"}, MaxTTL: short, Expect: exclusion, Within: tries},
	},
	{
		Name: "retention-off",
		What: "An object that is written once can be overwritten before its retention ends. Holders that write to the " +
			"same key, one after the other, are enough: each counts on nothing being there.",
		File: writeOnceSQL, Function: "objects.check_retained",
		Old: "IF until > clock_timestamp() THEN", New: "IF false THEN",
		Run: &Run{Surfaces: []string{"s3-once"}, Faults: []string{"client-stutter"}, Expect: []string{"lost-update"}, Within: tries},
	},
}
