package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/testenv"
)

func TestMigrateStatusFailsWhereFunctionsAreNobodys(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	where := map[string]string{"FENCEGATE_POSTGRES_URL": pg.URL}
	if code, stdout, stderr := cli(t, where, "migrate", "status"); code != exitOK || !strings.Contains(stdout, "up to date") || stderr != "" {
		t.Errorf("%d, %q, %q", code, stdout, stderr)
	}
	runSQL(t, pg.URL, `CREATE FUNCTION fence.check() RETURNS bigint LANGUAGE sql SECURITY DEFINER AS 'SELECT 1::bigint'`)
	if code, _, stderr := cli(t, where, "migrate", "status"); code != exitFailed || !strings.Contains(stderr, "fence.check()") || !strings.Contains(stderr, "hint:") {
		t.Errorf("with an old function: %d, %q", code, stderr)
	}
}

func TestMigrateTakesOnePartAlone(t *testing.T) {
	t.Parallel()
	_ = testenv.Postgres(t) // keeps the roles in use, so no other test loses them
	where := map[string]string{"FENCEGATE_POSTGRES_URL": testenv.PostgresEmpty(t).URL}
	for _, step := range []struct {
		args string
		code int
		says string
	}{
		{"up --only objects", exitFailed, "the set objects needs the set fence"},
		{"up --only fence", exitOK, ""},
		{"status --only fence", exitOK, "up to date"},
		{"status", exitOK, "no objects"},
		{"up", exitOK, ""},
		{"down --only fence --force", exitFailed, "the set objects is there"},
		{"down --only objects", exitOK, ""},
		{"down --only fence", exitOK, ""},
		{"status", exitOK, "not migrated"},
		{"up --only both", exitUsage, "--only is neither"},
		{"sql --from 1", exitUsage, "--only"},
		{"sql --only fence --from -1", exitUsage, "--from"},
		{"sql --only fence --from 99", exitFailed, "at most"},
		{"sql --only fence", exitOK, "CREATE SCHEMA fence "},
	} {
		code, stdout, stderr := cli(t, where, append([]string{"migrate"}, strings.Fields(step.args)...)...)
		if code != step.code || !strings.Contains(stdout+stderr, step.says) {
			t.Errorf("%s: %d, %.200q, %q; want %d and %q", step.args, code, stdout, stderr, step.code, step.says)
		}
	}
}

// A migration that waits for another session says so on the standard error.
func TestMigrateUpSaysForWhomItWaits(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	other, err := pgx.Connect(t.Context(), pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close(context.WithoutCancel(t.Context())) }()
	if _, err := other.Exec(t.Context(), `SET application_name = 'psql'; SELECT pg_advisory_lock(x'66656e6365676174'::bigint)`); err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	releasing := writerFunc(func(p []byte) (int, error) {
		if _, err := other.Exec(t.Context(), `SELECT pg_advisory_unlock_all()`); err != nil {
			t.Error(err)
		}
		return stderr.Write(p)
	})
	code := execute(t.Context(), env{
		args: []string{"migrate", "up", "--postgres-url", pg.URL}, stdin: strings.NewReader(""), stdout: io.Discard, stderr: releasing,
		lookup: func(string) (string, bool) { return "", false }, environ: func() []string { return nil },
	})
	want := fmt.Sprintf("waiting for the migration lock: the session with pid %d (psql) holds it\n", other.PgConn().PID())
	if code != exitOK || stderr.String() != want {
		t.Errorf("%d, %q; want %q", code, stderr.String(), want)
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
