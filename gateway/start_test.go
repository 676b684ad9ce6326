//go:build unix

package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/gateway"
	"github.com/fencegate/fencegate/internal/testenv"
)

// logged is a log that several goroutines write to.
type logged struct {
	mu     sync.Mutex
	text   bytes.Buffer
	waits  int
	enough func() // called when a start has waited this often
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if bytes.Contains(b, []byte("failed to start the gateway")) {
		if l.waits--; l.waits == 0 {
			l.enough()
		}
	}
	return l.text.Write(b)
}

func (l *logged) lines(with string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, with) {
			found = append(found, line)
		}
	}
	return found
}

// failedStart starts a gateway that cannot start, and returns its log and its error. It gives up after so many waits;
// 0: never.
func failedStart(t *testing.T, cfg gateway.Config, waits int) (*logged, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log := &logged{waits: waits, enough: cancel}
	cfg.StartTimeout = time.Minute
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	g, err := gateway.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err = g.Start(ctx); err == nil {
		t.Error("it started", g.Stop())
	}
	return log, err
}

// A retry does not grant a right: the start ends at the first attempt.
func TestAMissingRightEndsTheStartAtOnce(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	cfg := config(t, pg)
	cfg.PostgresURL = pg.WriterURL
	refused := func(step string) {
		t.Helper()
		cfg.BlobDir = t.TempDir()
		log, err := failedStart(t, cfg, 0)
		if refusal, ok := errors.AsType[*pgconn.PgError](err); !ok || refusal.Code != "42501" || !strings.Contains(err.Error(), step+": ") {
			t.Errorf("%v", err)
		}
		if again := log.lines("42501"); len(again) > 0 {
			t.Errorf("it was tried again: %s", again)
		}
	}
	refused("make the bucket orders")
	admin, err := pgx.Connect(t.Context(), pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = admin.Close(t.Context()) }()
	if _, err := admin.Exec(t.Context(), "REVOKE CONNECT ON DATABASE "+pgx.Identifier{pg.Database}.Sanitize()+" FROM PUBLIC"); err != nil {
		t.Fatal(err)
	}
	refused("reach PostgreSQL")
}

func TestTheLogSaysWhatTheStartWaitsForAndWhere(t *testing.T) {
	t.Parallel()
	gone := closedPort(t)
	away := config(t, testenv.Postgres(t))
	away.PostgresURL = "postgres://u:hunter2@" + gone + "/shop"
	for where, c := range map[string]gateway.Config{gone + "/shop": away} {
		log, err := failedStart(t, c, 2)
		waits := log.lines("failed to start the gateway")
		if len(waits) != 2 || err == nil {
			t.Fatalf("%v: it was logged %d times that the start waits: %s", err, len(waits), waits)
		}
		for _, line := range waits {
			if !strings.Contains(line, " at="+where+" ") || !strings.Contains(line, "next_try_in=") || !strings.Contains(line, "step=") || strings.Contains(line, "hunter2") {
				t.Errorf("want where, what and when: %s", line)
			}
		}
		if !strings.Contains(waits[0], "next_try_in=100ms") || !strings.Contains(waits[1], "next_try_in=200ms") {
			t.Errorf("the pauses: %s", waits)
		}
	}
}
