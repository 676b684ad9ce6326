package main

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// setBack makes a database look as if its code were still to be applied.
var setBack = testenv.Renote(`split_part(note, ',', 1)`)

func TestServeDoesNotServeOnASchemaThatIsOlder(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	runSQL(t, pg.URL, setBack)
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("k1:"+strings.Repeat("5a", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	said, stderr := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- execute(ctx, env{
			args: []string{
				"serve", "--postgres-url", pg.GatewayURL, "--redis", "127.0.0.1:1", "--master-key-file", key,
				"--api-listen", "127.0.0.1:0", "--pg-listen", "127.0.0.1:0",
			},
			stdin: strings.NewReader(""), stdout: io.Discard, stderr: stderr, lookup: func(string) (string, bool) { return "", false },
		})
		_ = stderr.Close()
	}()
	lines := bufio.NewScanner(said)
	for lines.Scan() && !strings.Contains(lines.Text(), "the gateway serves") && !strings.Contains(lines.Text(), "code pending") {
	}
	if !strings.Contains(lines.Text(), "code pending") {
		t.Errorf("it says %q", lines.Text())
	}
	stop()
	_, _ = io.Copy(io.Discard, said)
	if got := <-code; got != exitOK {
		t.Errorf("asked to stop: %d", got)
	}
}

func TestAnOlderSchemaIsWaitedForAndThenRefused(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	log := slog.New(slog.DiscardHandler)
	if err := awaitSchema(t.Context(), pg.WriterURL, migrate.All, 0, log); err != nil {
		t.Errorf("up to date: %v", err)
	}
	if err := awaitSchema(t.Context(), "postgres://nobody@127.0.0.1:1/none", migrate.All, 0, log); err != nil {
		t.Errorf("away: %v", err)
	}
	runSQL(t, pg.URL, setBack)
	err := awaitSchema(t.Context(), pg.WriterURL, migrate.All, 0, log)
	if code, hint := classify(err); err == nil || code != exitFailed || !strings.Contains(hint, "migrate up") || !strings.Contains(err.Error(), "code pending") {
		t.Errorf("older: %v, %d %q", err, code, hint)
	}
	waited, output := make(chan error, 1), &firstLine{written: make(chan struct{})}
	go func() {
		waited <- awaitSchema(t.Context(), pg.WriterURL, migrate.All, time.Hour, slog.New(slog.NewTextHandler(output, nil)))
	}()
	select {
	case <-output.written:
	case err := <-waited:
		t.Fatalf("it does not wait: %v", err)
	}
	// a newer program migrates during the wait
	runSQL(t, pg.URL, testenv.Renote(`replace(note, 'state 1 ', 'state 999999 ') || ', code 1 0123456789ab'`), `UPDATE fencegate.fence_state SET version = 999999`)
	if err := <-waited; err != nil {
		t.Errorf("migrated during the wait: %v", err)
	}
	runSQL(t, pg.URL, `UPDATE fencegate.code SET min_program = 999`)
	err = awaitSchema(t.Context(), pg.WriterURL, migrate.All, time.Hour, log) // waiting does not help
	if code, hint := classify(err); err == nil || code != exitFailed || hint == "" || !strings.Contains(err.Error(), "use a newer program") {
		t.Errorf("a schema that needs a newer program: %v, %d %q", err, code, hint)
	}
}

// firstLine closes written at its first line.
type firstLine struct{ written chan struct{} }

func (s *firstLine) Write(p []byte) (int, error) {
	close(s.written)
	return len(p), nil
}

// A gateway without an S3 port does not need the objects.
func TestServeNeedsTheObjectsForTheS3PortOnly(t *testing.T) {
	t.Parallel()
	_ = testenv.Postgres(t) // keeps the roles in use, so no other test loses them
	pg, log := testenv.PostgresEmpty(t), slog.New(slog.DiscardHandler)
	if err := migrate.Up(t.Context(), pg.URL, migrate.Fence); err != nil {
		t.Fatal(err)
	}
	if err := awaitSchema(t.Context(), pg.OtherURL, migrate.Fence, 0, log); err != nil {
		t.Errorf("without an S3 port: %v", err)
	}
	if err := awaitSchema(t.Context(), pg.OtherURL, migrate.All, 0, log); err == nil || !strings.Contains(err.Error(), "no objects") {
		t.Errorf("with an S3 port: %v", err)
	}
}

// Waiting does not help if the schema needs a newer program.
func TestASchemaThatNeedsANewerProgramIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	pg, log := testenv.Postgres(t), slog.New(slog.DiscardHandler)
	runSQL(t, pg.URL, `UPDATE fencegate.code SET min_program = 999 WHERE name = 'objects'`)
	err := awaitSchema(t.Context(), pg.WriterURL, migrate.All, time.Hour, log)
	if _, hint := classify(err); err == nil || !strings.Contains(err.Error(), "use a newer program") || strings.Contains(hint, "migrate up") {
		t.Errorf("%v, %q", err, hint)
	}
	if err := awaitSchema(t.Context(), pg.WriterURL, migrate.Fence, 0, log); err != nil {
		t.Errorf("without an S3 port: %v", err)
	}
}

// Waiting does not help if another baseline made the database.
func TestADatabaseOfAnotherBaselineIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	pg, log := testenv.Postgres(t), slog.New(slog.DiscardHandler)
	runSQL(t, pg.URL, testenv.Renote(`replace(note, 'state 1 ', 'state 1 0123456789ab,')`))
	err := awaitSchema(t.Context(), pg.WriterURL, migrate.All, time.Hour, log)
	if _, hint := classify(err); err == nil || !strings.Contains(err.Error(), "another baseline") || !strings.Contains(err.Error(), "DROP DATABASE") || strings.Contains(hint, "migrate up") {
		t.Errorf("%v, %q", err, hint)
	}
}

// A gateway refuses to serve if it can't read the record.
func TestServeNeedsToReadTheRecord(t *testing.T) {
	t.Parallel()
	pg, log := testenv.Postgres(t), slog.New(slog.DiscardHandler)
	runSQL(t, pg.URL, `REVOKE ALL ON SCHEMA fencegate FROM PUBLIC`)
	if err := awaitSchema(t.Context(), pg.WriterURL, migrate.All, 0, log); err == nil || !strings.Contains(err.Error(), "42501") {
		t.Errorf("without the right: %v", err)
	}
	if err := migrate.Up(t.Context(), pg.URL, migrate.All); err != nil {
		t.Fatal(err)
	}
	if err := awaitSchema(t.Context(), pg.WriterURL, migrate.All, 0, log); err != nil {
		t.Errorf("migrated again: %v", err)
	}
	runSQL(t, pg.URL, `ALTER TABLE fencegate.code ENABLE ROW LEVEL SECURITY`)
	if err := awaitSchema(t.Context(), pg.WriterURL, migrate.All, time.Hour, log); err == nil || !strings.Contains(err.Error(), "row-level security") {
		t.Errorf("prepared: %v", err)
	}
}
