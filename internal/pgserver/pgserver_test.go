//go:build unix

package pgserver

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// folder is a new folder that PostgreSQL's user may enter; the parents of t.TempDir may be closed to it.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fencegate-pg-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	s, err := Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })
	return s
}

// query runs one statement and returns its single value as text.
func query(t *testing.T, s *Server, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	var v *string
	err = conn.QueryRow(t.Context(), sql).Scan(&v)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatalf("%s: %v", sql, err)
	}
	if v == nil {
		return ""
	}
	return *v
}

func TestCommittedWorkOutlivesAKill(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	s := start(t, Config{Dir: dir})
	query(t, s, "CREATE TABLE kept (v text)")
	query(t, s, "INSERT INTO kept VALUES ('yes') RETURNING v")
	_ = s.Kill()
	again := start(t, Config{Dir: dir})
	if got := query(t, again, "SELECT v FROM kept"); got != "yes" {
		t.Fatalf("after a kill the table holds %q", got)
	}
	if again.Addr() != s.Addr() {
		t.Errorf("the address changed from %s to %s", s.Addr(), again.Addr())
	}
}
