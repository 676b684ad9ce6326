package gateway

import (
	"errors"
	"testing"

	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/internal/testenv"
	"github.com/fencegate/fencegate/wire"
)

func TestAllSettingsOfABucketAreSetOrNone(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	all := buckets{objects.NewCatalog(objects.NewDatabase(testenv.PoolOf(t, pg.GatewayURL), 0))}
	set := func(want wire.BucketRequest) (bool, error) { return all.EnsureBucket(t.Context(), "orders", want) }
	is := func(rule, keep, writeOnce string) {
		t.Helper()
		if got, err := all.InspectBucket(t.Context(), "orders"); err != nil || got.Rule != rule || got.Keep != keep || got.WriteOnce != writeOnce {
			t.Errorf("%+v, %v; want %s, %s, %s", got, err, rule, keep, writeOnce)
		}
	}
	if created, err := set(wire.BucketRequest{Keep: "3", WriteOnce: "1h"}); created || !errors.Is(err, api.ErrNotFound) {
		t.Errorf("a new bucket without a rule: %v, %v", created, err)
	}
	if created, err := set(wire.BucketRequest{Rule: "key", Keep: "3", WriteOnce: "1h"}); !created || err != nil {
		t.Errorf("a new bucket: %v, %v", created, err)
	}
	is("key", "3", "1h0m0s")
	if created, err := set(wire.BucketRequest{Keep: "all"}); created || err != nil {
		t.Errorf("one setting of a bucket that exists: %v, %v", created, err)
	}
	is("key", "all", "1h0m0s")

	// With an object the last setting is refused, and the others with it.
	if _, err := testenv.PoolOf(t, pg.URL).Exec(t.Context(), `INSERT INTO objects.pointers (bucket, key, version, size, etag, modified_at)
		VALUES ('orders', '1001', gen_random_uuid(), 0, '', now())`); err != nil {
		t.Fatal(err)
	}
	if created, err := set(wire.BucketRequest{Rule: "key", Keep: "5", WriteOnce: "none"}); created || !errors.Is(err, api.ErrConflict) {
		t.Errorf("a retention that is shortened: %v, %v", created, err)
	}
	is("key", "all", "1h0m0s")
	if created, err := set(wire.BucketRequest{Rule: "bucket", Keep: "5", WriteOnce: "2h"}); created || !errors.Is(err, api.ErrConflict) {
		t.Errorf("a rule that is in use: %v, %v", created, err)
	}
	is("key", "all", "1h0m0s")
}
