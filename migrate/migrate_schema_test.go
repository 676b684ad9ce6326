package migrate_test

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/catalogue"
	"github.com/fencegate/fencegate/internal/testenv"
)

var updateSchema = flag.Bool("update", false, "rewrite migrations/schema.sql")

const (
	schemaFile   = "../migrations/schema.sql"
	schemaHeader = `-- What the migrations make, for reading and for comparing: it can't be run. The query is internal/catalogue/catalogue.sql;
-- PostgreSQL 15 wrote it. After a change: make schema
`
)

// catalogueOf describes fencegate's part of a database.
func catalogueOf(t *testing.T, url string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	text, err := catalogue.Text(t.Context(), conn)
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// differences lists the lines that occur in only one of two texts, in order.
func differences(before, after string) []string {
	var list []string
	old, now := strings.Split(before, "\n"), strings.Split(after, "\n")
	for _, line := range old {
		if !slices.Contains(now, line) {
			list = append(list, "- "+line)
		}
	}
	for _, line := range now {
		if !slices.Contains(old, line) {
			list = append(list, "+ "+line)
		}
	}
	if len(list) == 0 && before != after {
		list = append(list, "the same lines in another order")
	}
	return list
}

// schema.sql shows a reviewer the effect of a change of the SQL.
func TestTheCommittedSchemaIsWhatTheMigrationsMake(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	made := schemaHeader + "\n" + catalogueOf(t, pg.URL)
	if *updateSchema {
		if err := os.WriteFile(schemaFile, []byte(made), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	committed, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	want := string(committed)
	var major int
	if err := pg.Pool(t).QueryRow(t.Context(), `SELECT current_setting('server_version_num')::int / 10000`).Scan(&major); err != nil {
		t.Fatal(err)
	}
	if major != 15 {
		// Other releases print views and constraints differently; functions and rights are the same.
		t.Logf("PostgreSQL %d: compared are names, bodies, owners and rights", major)
		made, want = alike(made), alike(want)
	}
	if made != want {
		t.Errorf("migrations/schema.sql is not what the migrations make; run make schema, and look at the difference:\n%s", strings.Join(differences(want, made), "\n"))
	}
}

// alike keeps the lines that all releases of PostgreSQL print alike.
func alike(text string) string {
	var kept []string
	for line := range strings.Lines(text) {
		for _, begin := range []string{"SCHEMA ", "TABLE ", "VIEW ", "SEQUENCE ", "FUNCTION ", "PROCEDURE ", "  body ", "  OWNER ", "  GRANT ", "  SET "} {
			if strings.HasPrefix(line, begin) {
				kept = append(kept, line)
			}
		}
	}
	return strings.Join(kept, "")
}
