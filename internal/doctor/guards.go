package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	sqlUncovered = `SELECT relation::text, reason FROM fence.uncovered ORDER BY 1, 2`

	sqlGuarded = `SELECT count(DISTINCT p.relation) FROM fence.protected p`

	// Published tables without a replica identity: their UPDATEs and DELETEs fail.
	sqlNoIdentity = `SELECT DISTINCT c.oid::regclass::text, t.pubname::text
  FROM fence.protected p JOIN pg_class c ON c.oid = p.relation JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_publication_tables t ON t.schemaname = n.nspname AND t.tablename = c.relname
 WHERE c.relreplident = 'n'
    OR c.relreplident = 'd' AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
    OR c.relreplident = 'i' AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident)
 ORDER BY 1, 2`

	sqlUnsealed = `SELECT count(*) FROM fence.unsealed_patterns` // the gateway's login may not read the table below it
)

func checkGuards(ctx context.Context, conn *pgx.Conn) []Finding {
	const check = "postgresql.guards"
	uncovered, err := collect[fault](ctx, conn, sqlUncovered)
	if err != nil {
		return []Finding{unseen(check, err)}
	}
	var found []Finding
	for _, u := range uncovered {
		if strings.HasPrefix(u.Do, "is in report mode") {
			found = append(found, warn(check, u.Found+" "+u.Do, "fencegate fence enforce "+u.Found+", once the log shows only refusals you expect."))
			continue
		}
		found = append(found, fail(check, u.Found+" can be written without a grant: "+u.Do, remedy(u)))
	}
	var guarded int
	switch err := conn.QueryRow(ctx, sqlGuarded).Scan(&guarded); {
	case err != nil:
		found = append(found, unseen(check, err))
	case guarded == 0 && len(uncovered) == 0:
		found = append(found, warn(check, "no table is protected", "fencegate protect TABLE --under PREFIX/"))
	case len(uncovered) == 0:
		found = append(found, ok(check, "%d table(s), partitions included, all guarded fully", guarded))
	}
	found = append(found, checkRefused(ctx, conn)...)
	found = append(found, checkGenerations(ctx, conn)...)
	return append(found, checkUnsealed(ctx, conn)...)
}

// checkUnsealed reports that there are names whose tokens need no seal.
func checkUnsealed(ctx context.Context, conn *pgx.Conn) []Finding {
	const check = "postgresql.unsealed"
	var patterns int
	err := conn.QueryRow(ctx, sqlUnsealed).Scan(&patterns)
	if missing, is := errors.AsType[*pgconn.PgError](err); is && missing.Code == "42P01" {
		return nil // the schema is another version's, which another check reports
	}
	switch {
	case err != nil:
		return []Finding{unseen(check, err)}
	case patterns > 0:
		return []Finding{warn(check, fmt.Sprintf("%d pattern(s) in fence.unsealed: a writer can invent tokens of these resources", patterns),
			"Remove those whose tokens fencegate issues.")}
	}
	return nil
}

// A partition may share its counter with its parent table, which represents both.
const sqlRefused = `SELECT (array_agg(p.relation::text ORDER BY c.relispartition, p.relation::text))[1], max(p.refused)
  FROM fence.protected p JOIN pg_class c ON c.oid = p.relation
 WHERE p.refused > 0 GROUP BY p.number ORDER BY 2 DESC, 1`

// checkRefused reports the table whose guard refuses most.
func checkRefused(ctx context.Context, conn *pgx.Conn) []Finding {
	const check = "postgresql.refused"
	type refusals struct {
		Table string
		Count int64
	}
	tables, err := collect[refusals](ctx, conn, sqlRefused)
	if missing, is := errors.AsType[*pgconn.PgError](err); is && (missing.Code == "42703" || missing.Code == "42P01") {
		return nil // the schema is another version's, which another check reports
	}
	switch {
	case err != nil:
		return []Finding{unseen(check, err)}
	case len(tables) == 0:
		return []Finding{ok(check, "no guard has refused a write since its table was protected")}
	}
	return []Finding{ok(check, "%s refuses most: %d write(s) since it was protected; %d table(s) refused any (fencegate fence tables)", tables[0].Table, tables[0].Count, len(tables))}
}

const sqlOutdated = `SELECT relation::text, generation::text FROM fence.outdated ORDER BY 1`

// checkGenerations lists the tables with guards of an older version.
func checkGenerations(ctx context.Context, conn *pgx.Conn) []Finding {
	const check = "postgresql.generations"
	outdated, err := collect[fault](ctx, conn, sqlOutdated)
	if missing, ok := errors.AsType[*pgconn.PgError](err); ok && missing.Code == "42P01" {
		return nil // the schema is another version's, which another check reports
	} else if err != nil {
		return []Finding{unseen(check, err)}
	}
	found := make([]Finding, len(outdated))
	for i, o := range outdated {
		found[i] = warn(check, o.Found+" has guards of an older version (generation "+o.Do+"), which go on working", "When writers are few: fencegate fence refresh "+o.Found)
	}
	return found
}

// remedy returns the remedy for an unguarded table, by the reason in fence.uncovered.
func remedy(u fault) string {
	protect := fmt.Sprintf("fencegate protect %s --resource … (or --under …)", u.Found)
	switch {
	case strings.Contains(u.Do, "foreign table"):
		return "Guard it on the server that has its data, and let writers reach it there; or move it out of what is protected."
	case strings.HasPrefix(u.Do, "is in the protected schema"):
		return "Protect the schema again (fencegate protect SCHEMA --schema …), or move the table to another one. With event triggers it is done for new tables: fencegate fence events install"
	case strings.HasPrefix(u.Do, "is a partition or child"):
		return "Protect the table above it again, or this one as that is: " + protect
	case strings.HasPrefix(u.Do, "is written through its parent"):
		return "Protect its parent alike, or take the table out of it."
	}
	return protect + fmt.Sprintf(", or fencegate unprotect %s where that is meant.", u.Found)
}

func checkReplicaIdentity(ctx context.Context, conn *pgx.Conn) Finding {
	const check = "postgresql.replica-identity"
	tables, err := collect[fault](ctx, conn, sqlNoIdentity)
	if err != nil {
		return unseen(check, err)
	}
	if len(tables) > 0 {
		return warn(check, fmt.Sprintf("%s is published (by %s) without a replica identity: its UPDATEs and DELETEs fail", tables[0].Found, tables[0].Do),
			fmt.Sprintf("Give it a primary key, or: ALTER TABLE %s REPLICA IDENTITY FULL;", tables[0].Found))
	}
	return ok(check, "every protected table that is published has one")
}
