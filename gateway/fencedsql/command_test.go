package fencedsql

import (
	"errors"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/fence"
)

func TestCommandsThatEndOrLeaveTheTransactionAreRefused(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{
		"", " ", ";", "-- nothing", "/* nothing */",
		"BEGIN", "begin", "  BeGiN;", "START TRANSACTION", "COMMIT", "commit and chain", "END", "ROLLBACK", "rollback to a", "ABORT",
		"SAVEPOINT a", "RELEASE a", "PREPARE TRANSACTION 'x'", "PREPARE p AS SELECT 1", "COMMIT PREPARED 'x'",
		"RESET ALL", "RESET fence.token", "DISCARD ALL", "COPY t FROM STDIN", "COPY (SELECT 1) TO STDOUT",
		"-- x\nCOMMIT", "-- x\rCOMMIT", "--\nCOMMIT", "/* x */COMMIT", "/* a /* nested */ COMMIT */COMMIT", "/**/ -- x\n /*/**/*/ COMMIT", "\t\r\n\f\vCOMMIT",
		";COMMIT", "; ; /* x */ ; -- y\n COMMIT", "/*--*/COMMIT", "COMMIT--x", "COMMIT/*x*/;", "COMMIT;SELECT 1",
		"SET ROLE x", "set role to x", "SET LOCAL ROLE x", "SET SESSION ROLE x", "SET role = 'x'", `SET "role" = 'x'`, "SET/**/ROLE/**/x",
		"SET SESSION AUTHORIZATION x", "SET session_authorization = x", "SET LOCAL session_authorization TO x", `SET "session_authorization" = x`,
		"SET fence.token = '1'", "SET LOCAL fence.token = '1'", "SET SESSION fence.resource TO x", "set FENCE.Token='1'",
		`SET "fence"."token" = '1'`, `SET "fence.token" = '1'`, `SET "FENCE".token = '1'`, "SET fence /* x */ . -- y\n token = '1'",
		"GRANT x TO y", "grant fence_writer to public", "REVOKE x FROM y", "REASSIGN OWNED BY a TO b",
		"ALTER ROLE CURRENT_USER SET x = 1", "alter /* x */ user CURRENT_USER PASSWORD 'x'", "ALTER GROUP a ADD USER b", "CREATE ROLE x", "CREATE USER x", "create group x",
		"DROP ROLE x", "DROP USER x", "ALTER DATABASE d SET x = 1", "ALTER SYSTEM SET x = 1", "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO x",
		"SET client_encoding = 'SJIS'", "SET LOCAL client_encoding TO latin1", `SET "client_encoding" = 'x'`, "SET NAMES 'SJIS'", "set local names 'x'",
		`SET U&"fence".token = '1'`, `SET u&"\0066ence.token" = '1'`, `SET fence.U&"token" = '1'`, `SET x.U&"token" = '1'`,
	} {
		err := checkCommand("statements[0].sql", sql)
		var invalid *fence.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "statements[0].sql" {
			t.Errorf("%q: %v; want it refused", sql, err)
		}
	}
}

func TestOrdinaryCommandsPass(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{
		"SELECT 1", "(SELECT 1)", "UPDATE commit SET begin = 1", "INSERT INTO t VALUES ($1)", "WITH a AS (SELECT 1) SELECT * FROM a",
		"-- COMMIT\nSELECT 1", "/* COMMIT */ SELECT 1", "/* /* */ COMMIT */ SELECT 1", "SELECT 'COMMIT'", "DO $$ BEGIN END $$", "CALL p()",
		"committed", "commit_ed", "beginning", "SET LOCAL search_path = app", "SET statement_timeout = 1000", "SET TIME ZONE 'UTC'", "SET CONSTRAINTS ALL DEFERRED",
		"ALTER TABLE roles ADD x int", "CREATE TABLE role (x int)", "DROP TABLE users", "CREATE TEMP TABLE t (x int)", "ALTER", "SET names.x = 1",
		"SET fencer.token = '1'", "SET roles.x = 1", "SET TRANSACTION READ ONLY", "EXPLAIN SELECT 1", "LOCK TABLE t", "\"commit\"", "é COMMIT",
	} {
		if err := checkCommand("f", sql); err != nil {
			t.Errorf("%q: %v", sql, err)
		}
	}
}

func FuzzAllowed(f *testing.F) {
	for _, sql := range []string{"SET fence.token=1", "/* /* */ */ COMMIT", "--\n;SELECT", `SET "a""b".U&"c" = 1`, "SET LOCAL", "/*", `SET "`, "SET a."} {
		f.Add(sql)
	}
	f.Fuzz(func(t *testing.T, sql string) {
		plain := checkCommand("f", sql)
		// Ignored text before a command does not change the result.
		for _, before := range []string{" ", "/* x */", "-- x\n", ";"} {
			if got := checkCommand("f", before+sql); (got == nil) != (plain == nil) {
				t.Errorf("%q: %v, but behind %q: %v", sql, plain, before, got)
			}
		}
		if plain == nil && strings.EqualFold(strings.TrimSpace(sql), "commit") {
			t.Errorf("%q passes", sql)
		}
	})
}
