package judge

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/migrate"
)

// database is a test's own server with the migrations and the triggers for the order of effects.
func database(t *testing.T) *pgxpool.Pool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	dir, err := os.MkdirTemp("", "fencegate-judge-") // PostgreSQL's user can't enter t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	server, err := pgserver.Start(ctx, pgserver.Config{Dir: filepath.Join(dir, "pg"), Fast: true, Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop() })
	if err := migrate.Up(ctx, server.URL("postgres"), migrate.All); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(ctx, server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(ctx, EffectsSQL); err != nil {
		t.Fatalf("effects.sql: %v", err)
	}
	return pool
}

func grant(t *testing.T, pool *pgxpool.Pool, resource string, token int64) fence.Grant {
	t.Helper()
	seal := fence.NewSeal()
	arming := fence.Arming{Resource: resource, Token: fence.Token(token), SealHash: seal.Hash(), Holder: "test"}
	err := pgfence.New(pool).Arm(t.Context(), arming)
	if err != nil {
		t.Fatal(err)
	}
	return fence.Grant{Resource: resource, Token: fence.Token(token), Seal: seal}
}

func TestRowsAndObjectsLeaveTheirEffects(t *testing.T) {
	t.Parallel()
	pool := database(t)
	g := grant(t, pool, "robust/r1-0", 7)
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	err := pgfence.InTx(t.Context(), pool, g, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "INSERT INTO judged.registers (resource) VALUES ('robust/r1-0')")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	exec("SELECT objects.create_bucket('robust', 1)")
	put := func(id string) {
		t.Helper()
		var version, blob string
		row := pool.QueryRow(t.Context(), "SELECT gen_random_uuid()::text, gen_random_uuid()::text")
		if err := row.Scan(&version, &blob); err != nil {
			t.Fatal(err)
		}
		seal := g.Seal.Hash()
		exec("SELECT objects.begin_upload($1, 'robust', 'r1-0/data', 'robust/r1-0', 7, $2)", blob, seal)
		exec(`SELECT objects.commit_put($1, 'robust', 'r1-0/data', $2, 5, 'e', $3, 'robust/r1-0', 7, $4, NULL, NULL, false)`,
			version, blob, fmt.Sprintf(`{"metadata": {"op": %q}}`, id), seal)
	}
	row := func(id string) {
		t.Helper()
		err := pgfence.InTx(t.Context(), pool, g, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(),
				"UPDATE judged.registers SET value = $1, token = 7 WHERE resource = 'robust/r1-0'", id)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	row("c1-1")
	put("c1-2")
	row("c1-3")
	put("c1-4")
	if _, err := pool.Exec(t.Context(), "UPDATE judged.registers SET value = 'c1-5'"); err == nil {
		t.Error("the registers can be written without a grant")
	}
	exec("DELETE FROM objects.pointers")
	rows, err := pool.Query(t.Context(),
		`SELECT seq, register, value, overwrote, resource, token, coalesce(version::text, ''), lsn::text, wall
		   FROM judged.effects ORDER BY seq`)
	if err != nil {
		t.Fatal(err)
	}
	effects, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Effect])
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range effects {
		got = append(got, fmt.Sprintf("%s %q over %q, %q %d", e.Register, e.Value, e.Overwrote, e.Resource, e.Token))
	}
	want := []string{
		`row:robust/r1-0 "c1-1" over "", "robust/r1-0" 7`,
		`file:robust/r1-0/data "c1-2" over "", "robust/r1-0" 7`,
		`row:robust/r1-0 "c1-3" over "c1-1", "robust/r1-0" 7`,
		`file:robust/r1-0/data "c1-4" over "c1-2", "robust/r1-0" 7`,
		`file:robust/r1-0/data "" over "c1-4", "" 0`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestRowsThatAreGuardedOnceAreStillGuarded(t *testing.T) {
	t.Parallel()
	pool := database(t)
	if _, err := pool.Exec(t.Context(), GuardedOnceSQL); err != nil {
		t.Fatal(err)
	}
	err := pgfence.InTx(t.Context(), pool, grant(t, pool, "robust/r1-0", 7), func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "INSERT INTO judged.registers (resource) VALUES ('robust/r1-0')")
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := pool.Exec(t.Context(), "UPDATE judged.registers SET value = 'c1-1'"); err == nil {
		t.Error("the registers can be written without a grant")
	}
	var guards []string
	row := pool.QueryRow(t.Context(), `SELECT array_agg(tgname::text ORDER BY tgname) FROM pg_trigger
		WHERE tgrelid = 'judged.registers'::regclass AND tgname LIKE 'fence%' AND tgtype & 2 = 0`)
	if err := row.Scan(&guards); err != nil || len(guards) > 0 {
		t.Errorf("checked after a statement: %v, %v", guards, err)
	}
}
