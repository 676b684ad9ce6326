package table

// modes are bugs that only a run in a mode of its own finds: with leases of PostgreSQL, with one Redis node, behind a
// balancer.
var modes = []Mutant{
	{
		Name: "lease-freed-without-owner",
		What: "Over PostgreSQL a release ends the lease even if it belongs to another holder. A client that pauses until " +
			"past its lease and then releases is enough.",
		File: "migrations/fence/code/leases.sql", Function: "fence.free_leases",
		Old: "WHERE l.owner = p_owners[t.n] FOR UPDATE OF l SKIP LOCKED) x;",
		New: "FOR UPDATE OF l SKIP LOCKED) x;",
		Run: &Run{PostgresLeases: true, Surfaces: direct, Faults: []string{"client-stop"}, MaxTTL: short, Expect: exclusion, Within: tries},
	},
	{
		Name: "one-node-asks-nobody",
		What: "A single node that lost its data has no others to ask how long the leases of its last run may still be " +
			"held, and takes that for an answer: it is admitted after a second, and not after the longest TTL. One loss " +
			"under a lease of more than a second is enough. Three nodes ask each other.",
		File: "lock/internal/admission/admit.go",
		Old:  "return left, asked >= g.Quorum",
		New:  "return left, asked >= g.Quorum || len(all) == 1",
		Run: &Run{
			Redis: 1, Surfaces: []string{"library", "http-direct"}, Faults: []string{"redis-empty", "redis-kill", "redis-flush"},
			Expect: exclusion, Within: rarely,
		},
	},
	{
		Name: "unknown-sql-may-be-repeated",
		What: "A gateway that lost PostgreSQL's answer to the COMMIT of /v1/sql says so with status 503, which a balancer " +
			"repeats at the next gateway: what was done is done twice. It takes connections that are cut after the server " +
			"has answered. Without a balancer nobody repeats it.",
		File: "gateway/api/problem.go",
		Old:  "{wire.CodeUnknown, http.StatusBadGateway,",
		New:  "{wire.CodeUnknown, http.StatusServiceUnavailable,",
		Run: &Run{
			Balancer: true, Surfaces: []string{"http-sql"}, Faults: []string{"net-cut-after/gateway-postgres"},
			Expect: []string{"done-twice"}, Within: rarely,
		},
	},
}
