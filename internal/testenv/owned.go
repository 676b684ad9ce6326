//go:build unix

package testenv

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/fencegate/fencegate/internal/child"
	"github.com/fencegate/fencegate/internal/pgserver"
)

// ServerDir is the folder for one PostgreSQL of a test. It survives the server's restarts and is removed with the test.
// PostgreSQL's user may enter it.
func ServerDir(t testing.TB) string {
	t.Helper()
	dir, err := serverDir()
	if err != nil {
		fatal(t, err)
	}
	t.Cleanup(func() {
		_ = os.RemoveAll(dir)
		child.Removed(dir)
	})
	return filepath.Join(dir, "cluster")
}

func serverDir() (string, error) {
	dir, err := os.MkdirTemp("", "fencegate-test-pg-")
	if err != nil {
		return "", err
	}
	if err := child.RemoveAtDeath(dir); err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o711)
}

// OwnPostgres starts a PostgreSQL for one test, which the test may configure, stop, crash and restart in cfg.Dir, by
// default a new [ServerDir]. It is stopped when the test ends.
func OwnPostgres(t testing.TB, cfg pgserver.Config) *pgserver.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startPatience)
	defer cancel()
	if cfg.Dir == "" {
		cfg.Dir = ServerDir(t)
	}
	s, err := pgserver.Start(ctx, cfg)
	if err != nil {
		fatal(t, err)
	}
	t.Cleanup(func() { _ = s.Stop() })
	return s
}
