package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/pgtext"
	"github.com/fencegate/fencegate/migrate"
)

// oldestServer is the oldest server_version_num that the migrations support.
const oldestServer = 140000

// examinePostgres stops early if the remaining checks can't tell anything.
func examinePostgres(ctx context.Context, url string) []Finding {
	const check = "postgresql.reachable"
	if err := pgtext.CheckPassfile(url); err != nil {
		return []Finding{fail(check, "the address "+err.Error(), "Correct the name, or let the user of doctor and of the gateway read the file.")}
	}
	config, err := pgx.ParseConfig(url)
	if err != nil { // its text may contain the address, which holds a password
		return []Finding{fail(check, "the address is no PostgreSQL address", "Write it as postgres://user@host:port/database; keep the password in FENCEGATE_POSTGRES_URL or PGPASSWORD.")}
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // prepares nothing: a pooler is detected, and causes no errors
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return []Finding{fail(check, pgtext.Of(err), "Start PostgreSQL, or correct the address, the login or pg_hba.conf.")}
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	found := []Finding{ok(check, "%s as %s", serverAddress(conn), config.User)}
	found = append(found, checkAging("postgresql.certificate", serverAddress(conn), conn.PgConn().Conn(), config.TLSConfig)...)

	found = append(found, checkPooler(ctx, config), checkVersion(ctx, conn), checkPrimary(ctx, conn), checkClock(ctx, conn))
	found = append(found, checkDurability(ctx, conn)...)
	found = append(found, checkTimeouts(ctx, conn)...)
	found = append(found, checkPrepared(ctx, conn), checkStandbys(ctx, conn))
	schema, migrated := checkSchema(ctx, conn, url)
	found = append(found, schema)
	if !migrated {
		return found
	}
	found = append(found, checkRoles(ctx, conn)...)
	found = append(found, checkEventTriggers(ctx, conn))
	found = append(found, checkGuards(ctx, conn)...)
	return append(found, checkReplicaIdentity(ctx, conn))
}

// serverAddress describes where a connection leads: of several hosts, the one that answered.
func serverAddress(conn *pgx.Conn) string {
	config := conn.Config()
	at := fmt.Sprintf("%s:%d", config.Host, config.Port)
	for _, other := range config.Fallbacks {
		if other.Host != config.Host || other.Port != config.Port {
			at = conn.PgConn().Conn().RemoteAddr().String()
		}
	}
	return at + "/" + config.Database
}

func checkVersion(ctx context.Context, conn *pgx.Conn) Finding {
	const check = "postgresql.version"
	var number int
	var text string
	if err := conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int, current_setting('server_version')`).Scan(&number, &text); err != nil {
		return unseen(check, err)
	}
	return judgeVersion(check, number, text)
}

func judgeVersion(check string, number int, text string) Finding {
	if number < oldestServer {
		return fail(check, "PostgreSQL "+text, "Use PostgreSQL 14 or newer.")
	}
	return ok(check, "PostgreSQL %s", text)
}

func checkPrimary(ctx context.Context, conn *pgx.Conn) Finding {
	const check = "postgresql.primary"
	var standby, readOnly bool
	if err := conn.QueryRow(ctx, `SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only')::boolean`).Scan(&standby, &readOnly); err != nil {
		return unseen(check, err)
	}
	switch {
	case standby:
		return fail(check, "the server is a standby (in recovery), where no fence can be raised or checked", "Name the primary; or promote this server, then run: fencegate fence invalidate-all --yes")
	case readOnly:
		return fail(check, "default_transaction_read_only is on: no fence can be raised", "Turn it off for this login, or name the primary.")
	}
	return ok(check, "takes writes")
}

// maxSkew is how far clocks may differ before displayed times confuse. No guarantee depends on it.
const maxSkew = 2 * time.Second

func checkClock(ctx context.Context, conn *pgx.Conn) Finding {
	const check = "postgresql.clock"
	var there time.Time
	begun := time.Now()
	if err := conn.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&there); err != nil {
		return unseen(check, err)
	}
	return judgeClock(check, there, begun)
}

// judgeClock compares a clock that was read between begun and now.
func judgeClock(check string, there, begun time.Time) Finding {
	took := time.Since(begun)
	skew := there.Sub(begun.Add(took / 2)).Abs()
	if skew > maxSkew+took/2 {
		return warn(check, fmt.Sprintf("its clock and this machine's are %s apart", skew.Round(time.Millisecond)),
			"Synchronize the clocks (NTP). The fence does not depend on them; people who read times do.")
	}
	return ok(check, "within %s of this machine's", (skew + took/2).Round(time.Millisecond))
}

const sqlDurability = `SELECT current_setting('fsync')::boolean, current_setting('full_page_writes')::boolean, current_setting('synchronous_commit')`

func checkDurability(ctx context.Context, conn *pgx.Conn) []Finding {
	const check = "postgresql.durability"
	var fsync, fullPages bool
	var commit string
	if err := conn.QueryRow(ctx, sqlDurability).Scan(&fsync, &fullPages, &commit); err != nil {
		return []Finding{unseen(check, err)}
	}
	var found []Finding
	if !fsync {
		found = append(found, fail(check, "fsync is off: a crash of the machine can lose acknowledged raises, and stale writers get in", "Set fsync = on."))
	}
	if !fullPages {
		found = append(found, warn(check, "full_page_writes is off: a crash can tear pages, those of fences too", "Set full_page_writes = on, unless the file system never tears a page (ZFS)."))
	}
	if commit == "off" {
		found = append(found, warn("postgresql.synchronous-commit", "synchronous_commit is off for this login: raises are durable all the same, but other writes can be lost in a crash", "Set synchronous_commit = on where work must not be lost."))
	}
	if len(found) == 0 {
		found = []Finding{ok(check, "fsync and full_page_writes are on, synchronous_commit is %s", commit)}
	}
	return found
}

const sqlTimeouts = `SELECT (extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint,
       (extract(epoch FROM current_setting('lock_timeout')::interval) * 1000)::bigint,
       (extract(epoch FROM current_setting('statement_timeout')::interval) * 1000)::bigint,
       current_setting('default_transaction_isolation')`

// shortStatement is a timeout in ms that leaves draining too little time to end stale writers.
const shortStatement = 1000

func checkTimeouts(ctx context.Context, conn *pgx.Conn) []Finding {
	const check = "postgresql.timeouts"
	var idle, lock, statement int64
	var isolation string
	if err := conn.QueryRow(ctx, sqlTimeouts).Scan(&idle, &lock, &statement, &isolation); err != nil {
		return []Finding{unseen(check, err)}
	}
	var found []Finding
	if isolation != "read committed" && isolation != "read uncommitted" {
		found = append(found, fail("postgresql.isolation", "default_transaction_isolation is "+isolation+" for this login: arming needs READ COMMITTED",
			"ALTER ROLE … SET default_transaction_isolation = 'read committed'; for the gateway's login."))
	}
	if idle == 0 {
		found = append(found, warn(check, "idle_in_transaction_session_timeout is 0: a writer that stops within a transaction keeps its row locks for ever",
			"ALTER DATABASE … SET idle_in_transaction_session_timeout = '60s'; or for each writer's login."))
	}
	if lock != 0 && lock < shortStatement {
		found = append(found, warn("postgresql.lock-timeout", fmt.Sprintf("lock_timeout is %d ms for this login: protecting a busy table may give up", lock), "ALTER ROLE … SET lock_timeout = 0; for the login that protects tables."))
	}
	if statement != 0 && statement < shortStatement {
		found = append(found, warn("postgresql.statement-timeout", fmt.Sprintf("statement_timeout is %d ms for this login: arming may give up before stale writers have ended (ZF005)", statement),
			"ALTER ROLE … SET statement_timeout = '10s'; or longer, for the gateway's login."))
	}
	if len(found) == 0 {
		found = []Finding{ok(check, "idle_in_transaction_session_timeout %d ms, lock_timeout %d ms, statement_timeout %d ms", idle, lock, statement)}
	}
	return found
}

const sqlPrepared = `SELECT current_setting('max_prepared_transactions')::int,
       ARRAY(SELECT gid::text FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared)`

func checkPrepared(ctx context.Context, conn *pgx.Conn) Finding {
	const check = "postgresql.prepared-transactions"
	var limit int
	var gids []string
	if err := conn.QueryRow(ctx, sqlPrepared).Scan(&limit, &gids); err != nil {
		return unseen(check, err)
	}
	switch {
	case len(gids) > 0:
		return warn(check, fmt.Sprintf("%d prepared transaction(s) are open, which draining can't end: %s", len(gids), strings.Join(gids[:min(5, len(gids))], ", ")),
			"COMMIT PREPARED or ROLLBACK PREPARED each; arming over one fails with ZF005, which names it.")
	case limit > 0:
		return ok(check, "allowed (max_prepared_transactions is %d), none is open", limit)
	}
	return ok(check, "not allowed (max_prepared_transactions is 0)")
}

// sqlStandbys counts the standby servers. A login without pg_read_all_stats sees of a foreign connection its pid alone:
// the state is NULL.
const sqlStandbys = `SELECT count(*) FILTER (WHERE r.state = 'streaming' AND r.sync_state NOT IN ('sync', 'quorum')),
       count(*) FILTER (WHERE r.state = 'streaming'), count(*) FILTER (WHERE r.state IS NULL)
  FROM pg_stat_replication r
 WHERE NOT EXISTS (SELECT FROM pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')`

func checkStandbys(ctx context.Context, conn *pgx.Conn) Finding {
	const check = "postgresql.standbys"
	var lagging, all, hidden int
	if err := conn.QueryRow(ctx, sqlStandbys).Scan(&lagging, &all, &hidden); err != nil {
		return unseen(check, err)
	}
	switch {
	case lagging > 0:
		return warn(check, fmt.Sprintf("%d of %d standby server(s) replicate asynchronously: one that is promoted may have forgotten fences", lagging, all),
			"Set synchronous_standby_names; or run after each failover: fencegate fence invalidate-all --yes")
	case hidden > 0:
		return warn(check, fmt.Sprintf("%d replication connection(s) exist whose state this login may not see: they may be asynchronous standby servers", hidden),
			"Run doctor as a login that is a member of pg_monitor.")
	}
	return ok(check, "%d, all synchronous", all)
}

// to_regclass would fail for a login that may not use the schema.
const sqlHasFence = `SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'fence' AND c.relname = 'resources')`

func checkSchema(ctx context.Context, conn *pgx.Conn, url string) (f Finding, migrated bool) {
	const check = "postgresql.schema"
	const up = "Run: fencegate migrate up"
	var there bool
	if err := conn.QueryRow(ctx, sqlHasFence).Scan(&there); err != nil {
		return unseen(check, err), false
	}
	state, err := migrate.Look(ctx, url, migrate.All)
	if err != nil {
		if foreign, ok := errors.AsType[*migrate.ForeignRecordError](err); ok {
			return fail(check, foreign.Error(), "Look whose it is before anybody migrates."), there
		}
		if foreign, ok := errors.AsType[*migrate.ForeignSchemaError](err); ok {
			return fail(check, foreign.Error(), "Look whose it is before anybody migrates."), there
		}
		return unseen(check, err), there
	}
	switch {
	case state.Other() != nil:
		return fail(check, state.String(), "Make the database again, or use the program that made it."), true
	case state.Gone():
		return fail(check, state.String(), "Restore the database from a backup. To start again: fencegate migrate down, then migrate up, and protect the tables again."), true
	case !state.Installed() && !there:
		return fail(check, "the database has no fence", up), false
	case state.NeedsNewerProgram(), state.Newer():
		return fail(check, state.String(), "Use a program as new as the schema."), true
	case !state.UpToDate():
		return fail(check, state.String(), up), true
	case len(state.Outside) > 0:
		return fail(check, "not of this version, and in our schemas: "+strings.Join(state.Outside, ", "),
			"An old function may accept what its successor refuses. Find out whose it is, and DROP FUNCTION (or VIEW) it."), true
	}
	return ok(check, "%s", state), true
}
