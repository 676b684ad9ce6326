package migrations_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/internal/testenv"
)

// aDayOfOverwrites leaves rows that a call of the sweep takes, and many that it leaves: current objects, versions whose
// grace has not ended, blobs whose bytes were deleted an hour ago, young uploads, young changes of tags. They are
// mixed, as updates mix them.
const aDayOfOverwrites = `
INSERT INTO objects.blobs (id, state, changed_at, tried_at, swept_at, version)
SELECT gen_random_uuid(), * FROM (
  SELECT 'live', now() - interval '3 days', NULL::timestamptz, NULL::timestamptz,
         gen_random_uuid() FROM generate_series(1, 10000) UNION ALL
  SELECT 'superseded', now() - n * interval '3 s', NULL, NULL, gen_random_uuid() FROM generate_series(1, 15000) n UNION ALL
  SELECT 'condemned', now() - n * interval '8 s', now() - interval '1 hour', now() - interval '1 hour',
         gen_random_uuid() FROM generate_series(1, 15000) n UNION ALL
  SELECT 'superseded', now() - n * interval '10 days', NULL, NULL, gen_random_uuid() FROM generate_series(1, 6) n UNION ALL
  SELECT 'pending', now() - n * interval '10 days', NULL, NULL, NULL FROM generate_series(1, 2) n UNION ALL
  SELECT 'condemned', now() - n * interval '1 s', NULL, NULL, gen_random_uuid() FROM generate_series(1, 2000) n UNION ALL
  SELECT 'condemned', now() - interval '1 day', now() - interval '13 hours', now() - interval '13 hours',
         gen_random_uuid() FROM generate_series(1, 2000)
) x ORDER BY random();
INSERT INTO objects.uploads (id, bucket, key, attributes, resource, token)
SELECT gen_random_uuid(), 'orders', n::text, '{}', 'orders', 1 FROM generate_series(1, 5000) n;
INSERT INTO objects.versions (id, bucket, key, blobs, blob_sizes, size, etag, resource, token, deletion, created_at)
SELECT gen_random_uuid(), 'orders', n::text, '{}', '{}', 0, '', 'orders', 1, n > 0,
       now() - n * interval '10 days' FROM generate_series(0, 6) n;
INSERT INTO objects.taggings (id, version, bucket, key, tags, resource, token, created_at)
SELECT gen_random_uuid(), v.id, 'orders', '0', '{}', 'orders', 1,
       now() - CASE WHEN n <= 8 THEN n * interval '10 days' ELSE n * interval '1 s' END
  FROM objects.versions v, generate_series(1, 20000) n WHERE NOT v.deletion`

const (
	againOnly  = "UPDATE objects.blobs SET tried_at = now() - interval '1 hour' WHERE state = 'condemned' AND tried_at IS NULL"
	failedOnly = "UPDATE objects.blobs SET tried_at = now(), swept_at = now() WHERE state = 'condemned' AND swept_at = tried_at"
)

// run runs a query, and returns how many rows it returned, and how many pages of tables and indexes it read.
func run(t *testing.T, conn *pgx.Conn, sql string) (rows, pages int) {
	t.Helper()
	var text []byte
	if err := conn.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+sql).Scan(&text); err != nil {
		t.Fatal(err)
	}
	var explained []struct {
		Plan struct {
			Rows float64 `json:"Actual Rows"`
			Hit  int     `json:"Shared Hit Blocks"`
			Read int     `json:"Shared Read Blocks"`
		}
	}
	if err := json.Unmarshal(text, &explained); err != nil {
		t.Fatal(err)
	}
	return int(explained[0].Plan.Rows), explained[0].Plan.Hit + explained[0].Plan.Read
}

// A sweep keeps up with overwrites only if a call's cost depends on what it takes, and not on what it leaves.
func TestAStepOfTheSweepReadsOnlyWhatItTakes(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), testenv.Postgres(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	const limit = 5
	count := func(call string) string { return "SELECT generate_series(1, " + call + ")" }
	var (
		dry     = count("objects.condemn('1 day', '1 day', 5, true, false)")
		condemn = count("objects.condemn('1 day', '1 day', 5, false, false)")
		list    = "SELECT objects.condemned('12 hours', now(), 5)"
		forget  = count("objects.forget_deletions('1 day', 5, false)")
	)
	for _, sql := range []string{dry, condemn, list, forget} {
		run(t, conn, sql) // the session reads the catalogue once
	}
	for _, step := range []struct {
		before, sql string
		takes       []int // of the first call, the second, ...
	}{
		{aDayOfOverwrites, dry, []int{limit}},
		{"", condemn, []int{limit, 3, 0}},
		{"", list, []int{limit}}, // blobs that were never tried
		{againOnly, list, []int{limit}},
		{failedOnly, list, []int{limit}},
		{"", forget, []int{limit, 3, 0}},
	} {
		if step.before != "" {
			if _, err := conn.Exec(t.Context(), step.before); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec(t.Context(), "VACUUM"); err != nil {
				t.Fatal(err)
			}
			run(t, conn, dry) // the session reads again what PostgreSQL knows of the tables
		}
		for i, want := range step.takes {
			rows, pages := run(t, conn, step.sql)
			if most := 100 + 40*want; rows != want || pages > most {
				t.Errorf("call %d of %s: %d rows, %d pages; want %d rows, at most %d pages", i+1, step.sql, rows, pages, want, most)
			}
		}
	}
}

// No blob is pending when the statistics are gathered, but many were: to the planner an index of pending blobs looks as
// good as the primary key, and each upload would read the dead rows of the others.
func TestAnUploadFindsItsBlobByItsID(t *testing.T) {
	t.Parallel()
	conn, err := pgx.Connect(t.Context(), testenv.Postgres(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	for _, sql := range []string{
		"INSERT INTO objects.blobs (id, state) SELECT gen_random_uuid(), 'live' FROM generate_series(1, 20000)",
		"VACUUM ANALYZE objects.blobs",
		"SET enable_seqscan = off", // as objects.commit_put does
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for _, state := range []string{"pending", "superseded", "condemned"} {
		rows, _ := conn.Query(t.Context(), // CollectRows returns the error again
			"EXPLAIN UPDATE objects.blobs SET state = 'live' WHERE id = '00000000-0000-0000-0000-000000000001' AND state = '"+state+"'")
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(plan, "\n"); !strings.Contains(text, "blobs_pkey") {
			t.Errorf("a blob that may be %s is looked up by\n%s", state, text)
		}
	}
}
