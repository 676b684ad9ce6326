package devstack

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/testenv"
)

func TestASecondStackIsRefusedBeforeItChangesAPassword(t *testing.T) {
	t.Parallel()
	pg := testenv.PostgresEmpty(t)
	n := foreignNames(true) // the logins are the whole server's
	t.Cleanup(func() {
		if err := unprovision(context.Background(), pg.URL, n); err != nil {
			t.Error(err)
		}
	})
	first, err := provision(t.Context(), pg.URL, n, "postgres")
	if err != nil {
		t.Fatal(err)
	}
	gateway, err := pgx.Connect(t.Context(), first.gateway)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = gateway.Close(context.Background()) }()
	if _, err := provision(t.Context(), pg.URL, n, "postgres"); err == nil || !strings.Contains(err.Error(), "another dev works with it") {
		t.Errorf("beside the first stack: %v", err)
	}
	again, err := pgx.Connect(t.Context(), first.gateway)
	if err != nil {
		t.Fatalf("the first stack after the second one was refused: %v", err)
	}
	for _, conn := range []*pgx.Conn{gateway, again} {
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if _, err := provision(t.Context(), pg.URL, n, "postgres"); err != nil {
		t.Errorf("after the first stack: %v", err)
	}
}
