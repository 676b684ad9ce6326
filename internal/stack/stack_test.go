//go:build unix

package stack_test

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/internal/stack"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyMain(m) }

func TestItsPartsServeAndLeaveNothing(t *testing.T) {
	t.Parallel()
	s, err := stack.New("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(s.Dir); !os.IsNotExist(err) {
			t.Errorf("%s after Close: %v", s.Dir, err)
		}
	})
	pg, err := s.Postgres(t.Context(), stack.PostgresConfig{})
	if err != nil {
		t.Fatal(err)
	}
	standby, err := pg.Standby(t.Context(), "standby", true)
	if err != nil {
		t.Fatal(err)
	}
	grant, err := pg.Arm(t.Context(), "orders/1001", 34)
	if err != nil {
		t.Fatal(err)
	}
	if seen := recorded(t, standby.Admin(), grant.Resource); seen != 34 {
		t.Errorf("the standby records token %d", seen)
	}
	pooled, err := pg.PgBouncer(t.Context(), stack.PgBouncerConfig{To: pg.Addr(), Database: pg.Database.Name, Users: map[string]string{stack.Gateway: pg.Password(stack.Gateway)}})
	if err != nil {
		t.Fatal(err)
	}
	if seen := recorded(t, strings.Replace(pg.As(stack.Gateway), pg.Addr(), pooled, 1), grant.Resource); seen != 34 {
		t.Errorf("behind PgBouncer: token %d", seen)
	}
	if redis, err := s.Redis(t.Context(), 3); err != nil || len(redis.Addrs()) != 3 {
		t.Errorf("%v, %v", redis, err)
	}
}

// A program that takes SIGTERM for a failure: only Kill may end it otherwise than with status 0.
func TestAGatewaysEndIsSeen(t *testing.T) {
	t.Parallel()
	s, err := stack.New("")
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(s.Dir, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\ntrap 'exit 3' TERM\necho starts\nwhile :; do sleep 0.01; done\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	started := func(name string) *stack.GatewayProcess {
		g, err := s.Prepare(t.Context(), stack.GatewayConfig{Name: name, Program: program})
		if err != nil {
			t.Fatal(err)
		}
		g.Kill() // there is none yet
		if err := g.Start(); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, "the program has its trap", func() error {
			text, err := os.ReadFile(g.Log)
			if err == nil && len(text) == 0 {
				err = io.EOF
			}
			return err
		})
		return g
	}
	killed := started("killed")
	killed.Kill()
	process, path := killed.Process(), killed.Spec.Path
	killed.Spec.Path = "/nonexistent/program"
	if err := killed.Start(); err == nil || killed.Process() != process {
		t.Errorf("a start that fails: %v; the last process is %v", err, killed.Process())
	}
	if err := killed.Stop(); err != nil {
		t.Errorf("after Kill: %v", err)
	}
	if killed.Spec.Path = path; killed.Start() != nil {
		t.Error("it does not start again")
	}
	killed.Kill()
	started("stopped")
	if err := s.Close(); err == nil || err.Error() != "stopped ended: exit status 3\nstarts\n" {
		t.Errorf("Close: %v", err)
	}
}

func recorded(t *testing.T, address, resource string) (token fence.Token) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if err := conn.QueryRow(t.Context(), "SELECT token FROM fence.fences WHERE resource = $1", resource).Scan(&token); err != nil {
		t.Fatal(err)
	}
	return token
}
