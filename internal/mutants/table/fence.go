package table

import "time"

const (
	checkSQL   = "migrations/fence/code/check.sql"
	armSQL     = "migrations/fence/code/arm.sql"
	groupSQL   = "migrations/fence/code/group.sql"
	writeSQL   = "migrations/objects/code/write.sql"
	putSQL     = "migrations/objects/code/put.sql"
	publishSQL = "migrations/objects/code/publish.sql"
	sweepSQL   = "migrations/objects/code/sweep.sql"

	grantsSQL    = "migrations/fence/code/grants.sql"
	writeOnceSQL = "migrations/objects/code/writeonce.sql"
)

// tries bounds a run for a bug that clients with pauses can trigger; rarely is for one that needs a fault at the right
// moment, and seldom for one that needs several. Each is at least four times the measured time.
const (
	tries  = 2 * time.Minute
	rarely = 4 * time.Minute
	seldom = 7 * time.Minute
)

// short leases end often.
const short = 1200 * time.Millisecond

var (
	stale  = []string{"stale", "lost-update", "order"}
	direct = []string{"library", "http-direct"} // the gateway's port would end superseded sessions
)

// fences are bugs of the fence in PostgreSQL.
var fences = []Mutant{
	{
		Name: "guard-without-lock",
		What: "The check reads the fence and locks nothing. Arming finds nobody to wait for, so a transaction " +
			"that wrote before the lease ended commits after the next holder has read. A client that pauses " +
			"before COMMIT until past its lease is enough.",
		File: checkSQL, Function: "fence.fast_check",
		Old: `pg_catalog.pg_try_advisory_xact_lock_shared(
        pg_catalog.hashtextextended(pg_catalog.encode(h, 'hex'), pg_catalog.hashtextextended(r, 0)))`,
		New: "true",
		Run: &Run{Surfaces: direct, Faults: []string{"client-stop"}, MaxTTL: short, Expect: stale, Within: tries},
	},
	{
		Name: "read-before-lock",
		What: "The check reads the fence first, and locks afterwards. Between the two, up to 100 ms here, the " +
			"fence is raised and drained, and the lock of the superseded grant is free. A client that writes at " +
			"the end of its lease is enough, where a statement is checked once: the guard of a table with a resource " +
			"per row checks again after the statement, and fence.use before it.",
		File: checkSQL, Function: "fence.fast_check",
		Old: "BEGIN\n  -- 1. Lock:",
		New: `BEGIN
  SELECT f.token INTO recorded FROM fence.resources f
   WHERE f.resource OPERATOR(pg_catalog.=) r AND f.seal OPERATOR(pg_catalog.=) h
     AND f.xmax OPERATOR(pg_catalog.=) '0'::pg_catalog.xid;
  PERFORM pg_catalog.pg_sleep(0.1 * pg_catalog.random());
  -- 1. Lock:`,
		Also: []Change{{
			File: checkSQL, Function: "fence.fast_check",
			Old: `    SELECT f.token INTO recorded FROM fence.resources f
     WHERE f.resource OPERATOR(pg_catalog.=) r AND f.seal OPERATOR(pg_catalog.=) h
       AND (pg_catalog.split_part(g, '.', 1) OPERATOR(pg_catalog.=) f.token::pg_catalog.text
            OR pg_catalog.split_part(g, '.', 1) OPERATOR(pg_catalog.=) '0')
       AND f.ended_at IS NULL
       AND (f.xmax OPERATOR(pg_catalog.=) '0'::pg_catalog.xid
            OR pg_catalog.starts_with(pg_catalog.current_setting('transaction_isolation'), 'read '));
  END IF;
  RETURN recorded;`,
			New: `    RETURN recorded;
  END IF;
  RETURN NULL;`,
		}},
		Run: &Run{
			Surfaces: direct, Faults: []string{"client-stutter"}, MaxTTL: short, GuardedOnce: true,
			Expect: stale, Within: rarely,
		},
	},
	{
		Name: "drain-skipped",
		What: "Arming raises the fence and does not wait for the writers that passed the check under the older " +
			"grant: they commit after the new holder has read. A client that pauses before COMMIT until past its " +
			"lease is enough.",
		File: armSQL, Function: "fence.drain",
		Old: "WHILE held_by IS NULL AND NOT fence.try_lock(k, true) AND EXISTS",
		New: "WHILE false AND EXISTS",
		Run: &Run{Surfaces: direct, Faults: []string{"client-stop"}, MaxTTL: short, Expect: stale, Within: tries},
	},
	{
		Name: "session-not-cut",
		What: "Draining counts a stale writer as ended when it should signal it, and sends no signal. It " +
			"commits when it likes. A client that pauses before COMMIT for longer than the grace of 200 ms after " +
			"the next acquisition is enough.",
		File: armSQL, Function: "fence.end_holders",
		Old: "told := told + pg_terminate_backend(h.pid)::int;",
		New: "told := told + 1;",
		Also: []Change{{
			File: armSQL, Function: "fence.drain",
			Old: "ended := ended + e.told;",
			New: "ended := ended + e.told;\n      EXIT WHEN e.told > 0;",
		}},
		Run: &Run{Surfaces: direct, Faults: []string{"client-stop"}, MaxTTL: short, Expect: stale, Within: tries},
	},
	{
		Name: "arm-without-comparison",
		What: "Arming records whatever token comes, also one that is not higher. Redis alone does not let tokens " +
			"rise: acquisitions whose majorities differ get the same token, or a lower one, and so they do where " +
			"counters are lost. It takes nodes that miss messages.",
		File: armSQL, Function: "fence.arm",
		Old: "f.token OPERATOR(pg_catalog.<) p_token AND f.undrained",
		New: "f.undrained",
		Also: []Change{{
			File: groupSQL, Function: "fence.arm_group",
			Old: "f.token < p_tokens[x.n] AND cardinality(f.undrained)",
			New: "cardinality(f.undrained)",
		}, {
			File: armSQL, Function: "fence.arm_otherwise",
			Old: "f.token < p_token AND fence.key(",
			New: "fence.key(",
		}, {
			File: armSQL, Function: "fence.raise",
			Old: "IF f.token >= p_token THEN",
			New: "IF f.token = p_token AND f.seal IS NOT DISTINCT FROM p_seal_hash THEN",
		}, {
			File: armSQL, Function: "fence.raise",
			Old: "WHERE resource = p_resource AND token < p_token;",
			New: "WHERE resource = p_resource;",
		}},
		Run: &Run{
			Faults: []string{"redis", "net-hold/gateway-redis", "net-hold/client-redis", "net-cut/gateway-redis"},
			Expect: []string{"token-twice", "token-falls", "stale", "lost-update"}, Within: seldom,
		},
	},
	{
		Name: "revoke-does-not-raise",
		What: "Revoking tells the token that it would raise the fence to, and raises nothing. Whoever held the " +
			"resource goes on writing. It takes an operator who revokes while a holder works. The holder is not " +
			"evicted either: freeing its lock ends its grant.",
		File: armSQL, Function: "fence.revoke",
		Old: "PERFORM fence.raise(p_resource, token, seal_hash, " +
			"coalesce(p_holder, 'revoked by ' || session_user));",
		New: "NULL;",
		Also: []Change{{
			File: "fence/pgfence/revoke.go",
			Old:  "err = f.Arm(ctx, fence.Arming{Resource: resource, Token: raised, SealHash: sealHash, Holder: holder})",
			New:  "err = nil",
		}, {
			File: "gateway/fences.go",
			Old:  `held.Owner == "" {`,
			New:  `held.Owner == "" || f.log != nil {`,
		}},
		Run: &Run{Faults: []string{"revoke"}, Expect: []string{"revoked", "token-twice"}, Within: tries},
	},
}
