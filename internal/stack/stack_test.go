//go:build unix

package stack_test

import (
	"context"
	"os"
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
	bouncer, err := pg.PgBouncer(t.Context(), stack.PgBouncerConfig{To: pg.Addr(), Database: pg.Database.Name, Users: map[string]string{stack.Gateway: pg.Password(stack.Gateway)}})
	if err != nil {
		t.Fatal(err)
	}
	if seen := recorded(t, strings.Replace(pg.As(stack.Gateway), pg.Addr(), bouncer.Addr, 1), grant.Resource); seen != 34 {
		t.Errorf("behind PgBouncer: token %d", seen)
	}
	if redis, err := s.Redis(t.Context(), 3); err != nil || len(redis.Addrs()) != 3 {
		t.Errorf("%v, %v", redis, err)
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
