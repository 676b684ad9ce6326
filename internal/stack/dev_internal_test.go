//go:build unix

package stack

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/testenv"
)

func TestASecondStackIsRefusedBeforeItChangesAPassword(t *testing.T) {
	t.Parallel()
	pg := testenv.PostgresEmpty(t)
	first := &Dev{server: pg.URL, database: foreignDatabase(true)} // the logins are the whole server's
	t.Cleanup(func() {
		if err := first.database.drop(context.Background(), pg.URL); err != nil {
			t.Error(err)
		}
	})
	if err := first.prepare(t.Context(), "postgres"); err != nil {
		t.Fatal(err)
	}
	second := &Dev{server: pg.URL, database: first.database}
	second.database.Logins = slices.Clone(first.database.Logins)
	second.database.Logins[devGateway].Password = "another"
	gateway, err := pgx.Connect(t.Context(), first.url(devGateway))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = gateway.Close(context.Background()) }()
	if err := second.prepare(t.Context(), "postgres"); err == nil || !strings.Contains(err.Error(), "in use by another") {
		t.Errorf("beside the first stack: %v", err)
	}
	again, err := pgx.Connect(t.Context(), first.url(devGateway))
	if err != nil {
		t.Fatalf("the first stack after the second one was refused: %v", err)
	}
	for _, conn := range []*pgx.Conn{gateway, again} {
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := second.prepare(t.Context(), "postgres"); err != nil {
		t.Errorf("after the first stack: %v", err)
	}
}
