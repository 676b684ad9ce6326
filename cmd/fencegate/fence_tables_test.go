package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/testenv"
)

func TestTablesAreListedWithWhatTheyRefused(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	runSQL(t, pg.URL,
		"CREATE TABLE calm (id int)", "CREATE TABLE orders (id int)", "CREATE TABLE drafts (id int)", "GRANT ALL ON calm, orders, drafts TO fence_writer",
		"SELECT fence.protect('calm', under => 'calm/')", "SELECT fence.protect('orders', per_row => $$'orders/' || id$$)",
		"SELECT fence.protect('drafts', resource => 'drafts', mode => 'report')")
	conn, err := pgx.Connect(t.Context(), pg.WriterURL)
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{"INSERT INTO orders VALUES (1)", "DELETE FROM orders WHERE id = 1", "INSERT INTO orders VALUES (2)"} {
		if _, err := conn.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s is not refused", sql)
		}
	}
	if _, err := conn.Exec(t.Context(), "INSERT INTO drafts VALUES (1)"); err != nil {
		t.Error(err)
	}
	_ = conn.Close(t.Context())
	for login, url := range map[string]string{"gateway": pg.GatewayURL, "writer": pg.WriterURL, "owner": pg.URL} {
		vars := map[string]string{"FENCEGATE_POSTGRES_URL": url}
		var tables []protectedTable
		if err := json.Unmarshal([]byte(ok(t, vars, "fence", "tables", "--json")), &tables); err != nil || len(tables) != 3 {
			t.Fatalf("%s: %v %+v", login, err, tables)
		}
		most, next, calm := tables[0], tables[1], tables[2]
		if most.Table != "orders" || most.Refused == nil || *most.Refused != 3 || most.WouldRefuse != nil || most.Mode != "enforce" || !most.Complete || most.Needs != "'orders/' || id" {
			t.Errorf("%s: first %+v", login, most)
		}
		if next.Table != "drafts" || next.Refused != nil || next.WouldRefuse == nil || *next.WouldRefuse != 1 || next.Needs != "drafts" {
			t.Errorf("%s: second %+v", login, next)
		}
		if calm.Table != "calm" || calm.Refused == nil || *calm.Refused != 0 || calm.Needs != "calm/*" {
			t.Errorf("%s: third %+v", login, calm)
		}
		if out := ok(t, vars, "fence", "tables"); !strings.Contains(out, "REFUSED") || strings.Count(out, "\n") != 4 {
			t.Errorf("%s: %s", login, out)
		}
	}
}

func TestADatabaseWithoutProtectedTablesHasAnEmptyList(t *testing.T) {
	t.Parallel()
	if out := ok(t, map[string]string{"FENCEGATE_POSTGRES_URL": testenv.Postgres(t).GatewayURL}, "fence", "tables", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("%s; want []", out)
	}
}
