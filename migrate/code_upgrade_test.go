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

// previous is a made-up older program's sets: other bodies, options and rights, and one signature that the next one lacks.
func previous(t *testing.T) migrate.Kit {
	t.Helper()
	return kitOf(t, func(files fstest.MapFS) {
		edit(t, files, "fence/code/check.sql", "ELSE 5000.0 END", "ELSE 4999.0 + 1.0 END")
		edit(t, files, "fence/code/check.sql", "GRANT EXECUTE ON FUNCTION fence.guard() TO fence_protector;", "GRANT EXECUTE ON FUNCTION fence.guard() TO PUBLIC;")
		edit(t, files, "fence/code/arm.sql", "GRANT SELECT ON fence.fences TO fence_gateway;", "GRANT SELECT ON fence.fences TO fence_gateway, fence_writer;")
		edit(t, files, "fence/code/arm.sql", "CREATE OR REPLACE FUNCTION fence.next_epoch(p_above bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER\nSET search_path = pg_catalog, pg_temp",
			"CREATE OR REPLACE FUNCTION fence.next_epoch(p_above bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER COST 7\nSET search_path = pg_catalog, pg_temp SET work_mem = '5MB'")
		edit(t, files, "objects/code/list.sql", "GRANT EXECUTE ON FUNCTION objects.list(text, text, text, text, integer) TO fence_gateway;", "GRANT EXECUTE ON FUNCTION objects.list(text, text, text, text, integer) TO fence_gateway, fence_writer;")
		extend(files, "objects/code/catalog.sql", `CREATE OR REPLACE FUNCTION objects.keeps(p_bucket text, p_key text) RETURNS boolean LANGUAGE sql AS 'SELECT objects.keeps(p_bucket)';
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
		step(t, files, "fence", stateOf(t, "fence")+1, `ALTER TABLE fence.resources ADD COLUMN noted text;
CREATE INDEX resources_of_holder ON fence.resources (holder);
GRANT SELECT ON fence.unsealed TO fence_gateway;`)
		step(t, files, "objects", stateOf(t, "objects")+1, "ALTER TABLE objects.versions ADD COLUMN noted text;") // commits return the row
		extend(files, "objects/code/catalog.sql", "DROP FUNCTION IF EXISTS objects.keeps(text, text);\n")
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
