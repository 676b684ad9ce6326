//go:build unix

package s3_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/fence/pgfence"
	"github.com/fencegate/fencegate/internal/testenv"
)

// Which character follows another one depends on the encoding, and chr() knows it of some only. Of these characters the
// order is the same as in UTF-8.
func TestListsInADatabaseThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	for encoding, names := range map[string]alphabet{
		"LATIN1":    {[]string{"\x01", "a", "/", "0", "\x7f", "\u0080", "ä", "ÿ"}, []string{"a", "ÿ"}, []string{"", "/", "\x7f", "ä", "ÿ", "ÿÿ"}},
		"EUC_JP":    {[]string{"\x01", "a", "/", "0", "\x7f", "あ", "い", "亜"}, []string{"a", "い"}, []string{"", "/", "\x7f", "い", "/亜", "亜亜"}},
		"SQL_ASCII": unicodeNames,
	} {
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			db := encoded(t, encoding)
			for seed := range uint64(8) {
				bucket, keys := asksAsTheModel(t, db, names, seed)
				fillVersionsAndUploads(t, db, bucket)
				for _, delimiter := range names.delimiters {
					for _, limit := range []int{3, 1000} {
						foldersOf(t, db, bucket, keys, question{delimiter: delimiter, limit: limit})
					}
				}
			}
		})
	}
}

// encoded returns a pool for a migrated database of another encoding.
func encoded(t *testing.T, encoding string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(testenv.PostgresIn(t, encoding).URL)
	if err != nil {
		t.Fatal(err)
	}
	pgfence.Configure(config)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// fillVersionsAndUploads gives each key of the bucket a version, some of them no longer current, and an upload under way.
func fillVersionsAndUploads(t *testing.T, db *pgxpool.Pool, bucket string) {
	t.Helper()
	for _, sql := range []string{
		`INSERT INTO objects.versions (id, bucket, key, blobs, blob_sizes, size, etag, resource, token)
		 SELECT version, bucket, key, '{}', '{}', size, etag, 'r', 1 FROM objects.pointers WHERE bucket = $1`,
		`INSERT INTO objects.uploads (id, bucket, key, attributes, resource, token)
		 SELECT gen_random_uuid(), bucket, key, '{}', 'r', 1 FROM objects.pointers WHERE bucket = $1`,
		`WITH gone AS (DELETE FROM objects.pointers WHERE bucket = $1 AND size % 2 = 0 RETURNING version)
		 UPDATE objects.versions SET kept_order = nextval('objects.kept_order') WHERE id IN (SELECT version FROM gone)`,
	} {
		if _, err := db.Exec(t.Context(), sql, bucket); err != nil {
			t.Fatal(err)
		}
	}
}

// foldersOf compares the pages of the lists of versions and of uploads with the model.
func foldersOf(t *testing.T, db *pgxpool.Pool, bucket string, keys []string, q question) {
	t.Helper()
	whole := q
	whole.limit = 1_000_000
	want := listModel(keys, whole)
	for _, list := range []string{
		`objects.list_versions($1, $2, $3, $4, NULL, $5)`,
		`objects.list_uploads($1, $2, $3, $4, 'ffffffff-ffff-ffff-ffff-ffffffffffff', $5)`,
	} {
		var got []string
		for after := ""; len(got) <= len(want); {
			rows, _ := db.Query(t.Context(), `SELECT entry, is_prefix FROM `+list, bucket, q.prefix, q.delimiter, after, q.limit)
			var isPrefix bool
			tag, err := pgx.ForEachRow(rows, []any{&after, &isPrefix}, func() error {
				entry := fmt.Sprintf("%q", after)
				if !isPrefix {
					entry += fmt.Sprintf(" %d", sizeOf(after))
				}
				got = append(got, entry)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if tag.RowsAffected() < int64(q.limit) {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s, pages of %d with delimiter %q:\n got %s\nwant %s", list, q.limit, q.delimiter, got, want)
		}
	}
}
