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
