//go:build unix

package s3_test

import (
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/internal/testenv"
)

// BenchmarkWhatKeepingVersionsCosts measures PostgreSQL's work for one PUT of an existing key, the announcement of the
// blob and the commit: in a bucket that keeps nothing, in one that keeps all, and in one that keeps all and has 10,000
// versions of the key. They run in turns, so that other load affects all alike. The test server does not wait for the
// disk, so that the difference shows.
func BenchmarkWhatKeepingVersionsCosts(b *testing.B) {
	pg := testenv.Postgres(b)
	pool := testenv.PoolOf(b, pg.GatewayURL)
	exec := func(sql string, args ...any) {
		if _, err := pool.Exec(b.Context(), sql, args...); err != nil {
			b.Fatal(err)
		}
	}
	buckets := []string{"none", "all", "all-of-10000"}
	for _, bucket := range buckets {
		exec("SELECT objects.create_bucket($1, 0, 'none')", bucket)
	}
	exec("SELECT objects.set_keep('all', NULL, NULL), objects.set_keep('all-of-10000', NULL, NULL)")
	_, err := pg.Pool(b).Exec(b.Context(), `INSERT INTO objects.versions (id, bucket, key, blobs, blob_sizes, size, etag, resource, token, kept_order, kept_at)
		SELECT gen_random_uuid(), 'all-of-10000', 'key', '{}', '{}', 0, '', '', 0, nextval('objects.kept_order'), now() FROM generate_series(1, 10000)`)
	if err != nil {
		b.Fatal(err)
	}
	took := map[string]time.Duration{}
	rounds := 0
	for b.Loop() {
		rounds++
		for _, bucket := range buckets {
			begun := time.Now()
			id := blob.NewID().String()
			exec("SELECT objects.begin_upload($1, $2, 'key', '', 0, NULL)", id, bucket)
			exec("SELECT objects.commit_upload($1, $2, 'key', ARRAY[$3::uuid], '{1024}', 'e', '{}', '', 0, NULL, NULL, NULL, false)", blob.NewID().String(), bucket, id)
			took[bucket] += time.Since(begun)
		}
	}
	for _, bucket := range buckets {
		b.ReportMetric(float64(took[bucket].Microseconds())/float64(rounds), bucket+"-µs/op")
	}
}
