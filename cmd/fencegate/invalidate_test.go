//go:build unix

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestANewGroupHasItsOwnKeysAndRefusesTheGrantsOfTheOldOne(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	vars := map[string]string{"FENCEGATE_POSTGRES_URL": pg.URL, "FENCEGATE_YES": "true"}
	g := grant(t, pg.GatewayURL, "orders/1", 5)
	pool := testenv.PoolOf(t, pg.GatewayURL)
	before, err := pgfence.KeyPrefix(pool)(t.Context())
	if err != nil || !strings.HasPrefix(before, "fencegate:") {
		t.Fatalf("the prefix is %q: %v", before, err)
	}
	if code, _, stderr := cli(t, vars, "fence", "new-group"); code != exitUsage || !strings.Contains(stderr, "--yes") || !strings.Contains(stderr, pg.Database) {
		t.Errorf("without a confirmation that was typed: %d %s", code, stderr)
	}
	if code, _, stderr := cli(t, map[string]string{"FENCEGATE_POSTGRES_URL": pg.GatewayURL}, "fence", "new-group", "--yes"); code == exitOK || !strings.Contains(stderr, "permission denied") {
		t.Errorf("a gateway's login may make a new group: %d %s", code, stderr)
	}
	if is, err := pgfence.KeyPrefix(pool)(t.Context()); err != nil || is != before {
		t.Fatalf("what was refused has changed the prefix to %s: %v", is, err)
	}
	if err := pgfence.InTx(t.Context(), testenv.PoolOf(t, pg.URL), g, func(pgx.Tx) error { return nil }); err != nil {
		t.Fatalf("what was refused has ended a grant: %v", err)
	}

	var done newGroup
	if err := json.Unmarshal([]byte(ok(t, vars, "fence", "new-group", "--yes", "--json")), &done); err != nil || done.Raised != 1 || done.Before != before || done.Database != pg.Database || done.Undrained == nil {
		t.Errorf("%v %+v", err, done)
	}
	if is, err := pgfence.KeyPrefix(pool)(t.Context()); err != nil || is != done.KeyPrefix || is == before {
		t.Errorf("the prefix is %s, was %s, and the output says %s: %v", is, before, done.KeyPrefix, err)
	}
	err = pgfence.InTx(t.Context(), testenv.PoolOf(t, pg.URL), g, func(pgx.Tx) error { return nil })
	if code, ok := fence.CodeOf(err); !ok || code.SQLState != "ZF001" {
		t.Errorf("a grant of the old group: %v", err)
	}
	// new-group also works if this server's fences were raised for another reason before.
	if out := ok(t, vars, "fence", "new-group", "--yes"); !strings.Contains(out, "1 fence(s) raised") || !strings.Contains(out, "of the database "+pg.Database+" begin with fencegate:") || strings.Contains(out, done.KeyPrefix) {
		t.Errorf("a second time: %s", out)
	}
}

func TestInvalidateAllRefusesEveryGrantFromBefore(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	vars := map[string]string{"FENCEGATE_POSTGRES_URL": pg.URL, "FENCEGATE_YES": "true"}
	runSQL(t, pg.URL, `CREATE TABLE orders (id bigint)`, `SELECT fence.protect('orders', under => 'orders/')`, `INSERT INTO fence.unsealed VALUES ('elsewhere/*')`,
		`SELECT fence.raise('elsewhere/1', 70, NULL, '')`, `SELECT fence.raise('highest', 9223372036854775807, NULL, '')`)
	g := grant(t, pg.GatewayURL, "orders/1", 5)
	lost := fence.Grant{Resource: "orders/1", Token: 7, Seal: fence.NewSeal()} // issued, and lost by the server

	if code, _, stderr := cli(t, vars, "fence", "invalidate-all"); code != exitUsage || !strings.Contains(stderr, "--yes") {
		t.Errorf("without a confirmation that was typed: %d %s", code, stderr)
	}
	// A writer under the old grant, in the middle of its transaction.
	conn, err := pgx.Connect(t.Context(), pg.WriterURL)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT fence.use($1, $2)`, g.Resource, g.Presented()); err != nil {
		t.Fatal(err)
	}

	var done invalidation
	if err := json.Unmarshal([]byte(ok(t, vars, "fence", "invalidate-all", "--yes", "--json")), &done); err != nil || done.Raised != 3 || done.Unsealed != 2 || done.Already || len(done.Undrained) != 0 {
		t.Errorf("%v %+v", err, done)
	}
	if err := tx.Commit(t.Context()); err == nil {
		t.Error("a writer that passed the check before committed after")
	}
	_ = conn.Close(t.Context())
	for _, old := range []fence.Grant{g, lost} {
		err := pgfence.InTx(t.Context(), testenv.PoolOf(t, pg.URL), old, func(pgx.Tx) error { return nil })
		if code, ok := fence.CodeOf(err); !ok || code.SQLState != "ZF001" {
			t.Errorf("grant %s: %v", old, err)
		}
	}
	for resource, want := range map[string]string{"orders/1": "4294967301", "elsewhere/1": "71", "highest": "9223372036854775807"} {
		var f fence.Record
		if err := json.Unmarshal([]byte(ok(t, vars, "fence", "show", resource, "--json")), &f); err != nil || f.Token.String() != want || !f.Sealed {
			t.Errorf("%s: %v %+v; want token %s", resource, err, f, want)
		}
	}

	if out := ok(t, vars, "fence", "invalidate-all", "--yes"); !strings.Contains(out, "nothing to raise") {
		t.Errorf("a second time under the same identity: %s", out)
	}
	if out := ok(t, vars, "fence", "invalidate-all", "--yes", "--again"); !strings.Contains(out, "3 fence(s) raised") {
		t.Errorf("again: %s", out)
	}
	code, _, _ := cli(t, map[string]string{"FENCEGATE_POSTGRES_URL": pg.GatewayURL}, "fence", "invalidate-all", "--yes")
	if code == exitOK {
		t.Error("a gateway's login may invalidate everything")
	}
}

func TestInvalidateAllNamesWhatItCannotDrainAndWhoIsInItsWay(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	vars := map[string]string{"FENCEGATE_POSTGRES_URL": pg.URL}
	g := grant(t, pg.GatewayURL, "orders/1", 5)
	conn, err := pgx.Connect(t.Context(), pg.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	run := func(sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	gid := "stale-" + pg.Database
	run(`BEGIN`)
	run(`SELECT fence.use($1, $2)`, g.Resource, g.Presented())
	run(`PREPARE TRANSACTION '` + gid + `'`)
	code, stdout, stderr := cli(t, vars, "fence", "invalidate-all", "--yes")
	if code != exitUnavailable || !strings.Contains(stdout, gid) || !strings.Contains(stderr, "hint: ") {
		t.Errorf("a prepared transaction: %d %q %q", code, stdout, stderr)
	}
	run(`ROLLBACK PREPARED '` + gid + `'`)
	if out := ok(t, vars, "fence", "invalidate-all", "--yes"); !strings.Contains(out, "nothing to raise") {
		t.Errorf("afterwards: %s", out)
	}

	run(`BEGIN`)
	run(`SELECT fence.raise('orders/1', 9000000000, NULL, '')`) // it holds the resource's turn until it ends
	code, _, stderr = cli(t, vars, "fence", "invalidate-all", "--yes", "--again")
	if code != exitUnavailable || !strings.Contains(stderr, "process ") {
		t.Errorf("behind a raise that does not end: %d %q", code, stderr)
	}
	run(`ROLLBACK`)
}
