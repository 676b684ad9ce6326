package migrate_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence"
	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/migrate"
)

// neverEnds removes the second step of the state and all later ones: a fence whose grants do not end.
func neverEnds(t *testing.T, files fstest.MapFS) {
	t.Helper()
	delete(files, "fence/state/000002_ended.up.sql")
	delete(files, "fence/state/000002_ended.down.sql")
	delete(files, "fence/state/000003_protector.up.sql") // its code remains, and so does the role
	delete(files, "fence/state/000003_protector.down.sql")
	_ = testenv.Postgres(t)
	delete(files, "fence/state/000004_nonces.up.sql")
	delete(files, "fence/state/000004_nonces.down.sql")
	delete(files, "fence/code/end.sql")
	delete(files, "fence/code/nonces.sql")
	delete(files, "fence/state/000005_floors.up.sql")
	delete(files, "fence/state/000005_floors.down.sql")
	delete(files, "fence/code/retire.sql")
	delete(files, "fence/state/000006_leases.up.sql")
	delete(files, "fence/state/000006_leases.down.sql")
	delete(files, "fence/state/000007_group.up.sql")
	delete(files, "fence/state/000007_group.down.sql")
	delete(files, "fence/state/000008_longest.up.sql")
	delete(files, "fence/state/000008_longest.down.sql")
	for _, name := range []string{"leases", "source", "own", "lockgroup", "longest"} {
		delete(files, "fence/code/"+name+".sql")
	}
	edit(t, files, "fence/code/identity.sql", "  PERFORM fence.end_leases();\n", "")
	edit(t, files, "fence/code/manifest.txt", "file end.sql\nfile nonces.sql\nfile retire.sql\nfile leases.sql\nfile source.sql\nfile own.sql\n", "")
	edit(t, files, "fence/code/manifest.txt", "file longest.sql\nfile lockgroup.sql\n", "")
	edit(t, files, "fence/code/check.sql", "      p_token := fence.token_of(p_resource, p_token, p_seal_hash);\n", "")
	edit(t, files, "objects/code/manifest.txt", "\nneeds fence state 2 revision 25\n", "\nneeds fence state 1 revision 25\n")
	edit(t, files, "fence/code/identity.sql", "UPDATE fence.floors o SET floor = o.floor + CASE WHEN o.floor < 4503599627370496 THEN 4294967296 ELSE 1048576 END;", "")
	without := strings.NewReplacer(", ended_at = NULL", "", ", ended_at = now()", "", "fence.floor_of(p_resource)", "0", "fence.floor_of(x.r)", "0",
		"fence.floor_of_unsealed(p_resource)", "0", " UNION ALL SELECT o.floor FROM fence.floors o", "", "AS undrained, ended_at", "AS undrained", "undrained, ended_at INTO", "undrained INTO", "seal, ended_at, xmax", "seal, xmax",
		"AND f.ended_at IS NULL", "", "AND x.ended_at IS NULL", "", "f.ended_at IS NOT NULL", "false")
	for _, name := range []string{"fence/code/arm.sql", "fence/code/group.sql", "fence/code/check.sql", "fence/code/identity.sql", "objects/code/put.sql"} {
		text := without.Replace(string(files[name].Data))
		if strings.Contains(text, "ended_at") || strings.Contains(text, "fence.floor") {
			t.Fatalf("%s knows that grants end", name)
		}
		add(files, name, text)
	}
}

// previous is a made-up older program's sets: other bodies, options and rights, one signature that the next release has
// replaced, and a state with one step less.
func previous(t *testing.T) migrate.Kit {
	t.Helper()
	return kitOf(t, func(files fstest.MapFS) {
		neverEnds(t, files)
		edit(t, files, "fence/code/check.sql", "ELSE 5000.0 END", "ELSE 4999.0 + 1.0 END")
		edit(t, files, "fence/code/check.sql", "GRANT EXECUTE ON FUNCTION fence.guard() TO fence_protector;", "GRANT EXECUTE ON FUNCTION fence.guard() TO PUBLIC;")
		edit(t, files, "fence/code/arm.sql", "GRANT SELECT ON fence.fences TO fence_gateway;", "GRANT SELECT ON fence.fences TO fence_gateway, fence_writer;")
		edit(t, files, "fence/code/arm.sql", "CREATE OR REPLACE FUNCTION fence.raise_epoch(p_above bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER\nSET search_path = pg_catalog, pg_temp",
			"CREATE OR REPLACE FUNCTION fence.raise_epoch(p_above bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER COST 7\nSET search_path = pg_catalog, pg_temp SET work_mem = '5MB'")
		edit(t, files, "objects/code/list.sql", "GRANT EXECUTE ON FUNCTION objects.list(text, text, text, text, integer) TO fence_gateway;", "GRANT EXECUTE ON FUNCTION objects.list(text, text, text, text, integer) TO fence_gateway, fence_writer;")
		add(files, "objects/code/compat.sql", `CREATE OR REPLACE FUNCTION objects.keeps(p_bucket text, p_key text) RETURNS boolean LANGUAGE sql AS 'SELECT objects.keeps(p_bucket)';
REVOKE ALL ON FUNCTION objects.keeps(text, text) FROM PUBLIC, fence_writer, fence_gateway;
GRANT EXECUTE ON FUNCTION objects.keeps(text, text) TO fence_gateway;
`)
	})
}

// next is the program after previous: the current code with a newer revision, and one more step in each state.
func next(t *testing.T) migrate.Kit {
	t.Helper()
	return kitOf(t, func(files fstest.MapFS) {
		for _, set := range []string{"fence", "objects"} {
			revise(t, files, set)
		}
		state := stateOf(t, "fence")
		add(files, fmt.Sprintf("fence/state/%06d_noted.up.sql", state+1), fmt.Sprintf(`SET ROLE fence_owner;
ALTER TABLE fence.resources ADD COLUMN noted text;
CREATE INDEX resources_of_holder ON fence.resources (holder);
GRANT SELECT ON fence.unsealed TO fence_gateway;
RESET ROLE;
COMMENT ON SCHEMA fence IS 'fencegate fence state %d';
`, state+1))
		add(files, fmt.Sprintf("fence/state/%06d_noted.down.sql", state+1), fmt.Sprintf(`DROP INDEX fence.resources_of_holder;
ALTER TABLE fence.resources DROP COLUMN noted;
COMMENT ON SCHEMA fence IS 'fencegate fence state %d';
`, state))
		step(files, "objects", stateOf(t, "objects")+1) // it also adds a column to the row that commits return
		edit(t, files, fmt.Sprintf("objects/state/%06d_more.up.sql", stateOf(t, "objects")+1), "RESET ROLE", "ALTER TABLE objects.versions ADD COLUMN noted text;\nRESET ROLE")
		add(files, "objects/code/compat.sql", "DROP FUNCTION IF EXISTS objects.keeps(text, text);\n")
	})
}

func TestAnUpgradedDatabaseIsAsAFreshOne(t *testing.T) {
	t.Parallel()
	fresh, upgraded := setup(t), setup(t)
	before, after := previous(t), next(t)
	if err := before.Up(t.Context(), upgraded.URL, migrate.All); err != nil {
		t.Fatal(err)
	}
	was := catalogueOf(t, upgraded.URL)
	for _, pg := range []testenv.PG{fresh, upgraded} {
		if err := after.Up(t.Context(), pg.URL, migrate.All); err != nil {
			t.Fatal(err)
		}
	}
	is := catalogueOf(t, upgraded.URL)
	if list := differences(catalogueOf(t, fresh.URL), is); len(list) > 0 {
		t.Errorf("upgraded is not as fresh:\n%s", strings.Join(list, "\n"))
	}
	if list := differences(was, is); len(list) < 12 {
		t.Errorf("the older one was hardly another one:\n%s", strings.Join(list, "\n"))
	}
	if s, err := after.Look(t.Context(), upgraded.OtherURL, migrate.All); err != nil || !s.UpToDate() || len(s.Outside) > 0 {
		t.Errorf("status %v, outside %v, %v", s, s.Outside, err)
	}
}

// No statement of a writer of the previous version fails at any point of the upgrade.
func TestWritersGoOnThroughoutAnUpgrade(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	if err := previous(t).Up(t.Context(), pg.URL, migrate.All); err != nil {
		t.Fatal(err)
	}
	exec1(t, pg, `CREATE TABLE work (id bigint, token bigint)`)
	exec1(t, pg, `SELECT fence.protect('work', per_row => $$'work/' || id$$, stamp => 'token')`)
	exec1(t, pg, `GRANT INSERT, UPDATE ON work TO PUBLIC`)
	exec1(t, pg, `SELECT objects.create_bucket('work', 1)`)
	gateway, writer := testenv.PoolOf(t, pg.As(t, "fence_gateway")), testenv.PoolOf(t, pg.As(t, "fence_writer"))

	stop := make(chan struct{})
	var writers sync.WaitGroup
	var rounds atomic.Int64
	for i := range 4 {
		writers.Go(func() {
			for token := fence.Token(1); ; token++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := oneRound(t.Context(), gateway, writer, fmt.Sprintf("work/%d", i), int64(i), token); err != nil {
					t.Errorf("round %d of writer %d: %v", token, i, err)
					return
				}
				rounds.Add(1)
			}
		})
	}
	awaitRounds := func(n int64) {
		for rounds.Load() < n && !t.Failed() {
			waitFor(t, pg, "time passes", `SELECT pg_sleep(0.01) IS NOT NULL`)
		}
	}
	awaitRounds(20)
	if err := next(t).Up(t.Context(), pg.URL, migrate.All); err != nil {
		t.Error(err)
	}
	awaitRounds(rounds.Load() + 20)
	close(stop)
	writers.Wait()
	if s, err := next(t).Look(t.Context(), pg.OtherURL, migrate.All); err != nil || !s.UpToDate() {
		t.Errorf("status %v, %v", s, err)
	}
	t.Logf("%d rounds", rounds.Load())
}

// The step waits for a transaction that has checked a grant. Other checks wait behind it for at most a second.
func TestTheStepOfTheFencesGoesInShortTurns(t *testing.T) {
	t.Parallel()
	pg := setup(t)
	if err := previous(t).Up(t.Context(), pg.URL, migrate.All); err != nil {
		t.Fatal(err)
	}
	writer := blocker(t, pg, `SELECT count(*) FROM fence.resources`)
	done := make(chan error, 1)
	go func() { done <- next(t).Up(t.Context(), pg.URL, migrate.All) }()
	waitFor(t, pg, "the step waits", `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'fence.resources'::regclass)`)
	exec1(t, pg, `SET lock_timeout = '10s'; SELECT count(*) FROM fence.resources`)
	if err := writer.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// oneRound does what a gateway and a writer do under one lease: arm, write a row, upload and delete an object.
func oneRound(ctx context.Context, gateway, writer *pgxpool.Pool, resource string, id int64, token fence.Token) error {
	seal := fence.NewSeal()
	if err := pgfence.New(gateway).Arm(ctx, fence.Arming{Resource: resource, Token: token, SealHash: seal.Hash(), Holder: "a test"}); err != nil {
		return fmt.Errorf("arm: %w", err)
	}
	err := pgfence.InTx(ctx, writer, fence.Grant{Resource: resource, Token: token, Seal: seal}, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO work (id) VALUES ($1)`, id)
		return err
	})
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	var blob, version string
	if err := gateway.QueryRow(ctx, `SELECT gen_random_uuid()::text, gen_random_uuid()::text`).Scan(&blob, &version); err != nil {
		return err
	}
	key := strings.TrimPrefix(resource, "work/")
	for _, call := range []struct {
		sql  string
		args []any
	}{
		{`SELECT objects.reserve_blobs(ARRAY[$1::uuid])`, []any{blob}},
		{`SELECT version FROM objects.commit_put($1, 'work', $2, $3, 7, 'etag', '{}', $4, $5, $6, NULL, NULL, false)`, []any{version, key, blob, resource, int64(token), seal.Hash()}},
		{`SELECT * FROM objects.list('work', '', '', '', 10)`, nil},
		{`SELECT id, etag FROM objects.commit_upload($1, 'work', $2, ARRAY[$3::uuid], ARRAY[7], 'etag', '{}', $4, $5, $6, NULL, NULL, false)`, []any{version, key, blob, resource, int64(token), seal.Hash()}},
		{`SELECT id FROM objects.commit_deletion(gen_random_uuid(), 'work', $1, $2, $3, $4, NULL, NULL)`, []any{key, resource, int64(token), seal.Hash()}},
		{`SELECT resource, token FROM fence.fences`, nil},
	} {
		// Like the gateway, it retries a call that fails because a column is being added.
		if err := objects.NewDatabase(gateway, 10*time.Second).Settle(ctx, objects.Exec(call.sql, call.args...)); err != nil {
			return fmt.Errorf("%s: %w", call.sql, err)
		}
	}
	return nil
}
