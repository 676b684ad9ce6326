package gateway

import (
	"errors"
	"strings"
	"testing"

	"github.com/fencegate/fencegate/client/wire"
	"github.com/fencegate/fencegate/gateway/api"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/internal/testenv"
)

// The settings of a bucket are set one after the other.
func TestAHalfSetBucketSaysWhatWasSet(t *testing.T) {
	t.Parallel()
	pg := testenv.Postgres(t)
	pool, count := leaving(t, pg.GatewayURL)
	count()
	_, err := buckets{objects.NewCatalog(objects.NewDatabase(pool, 0))}.EnsureBucket(t.Context(), "orders", wire.BucketRequest{Rule: "key", Keep: "3", WriteOnce: "1d"})
	const want = "rule is set, keep is not, write_once is not. Repeat the call later."
	if away, ok := errors.AsType[*api.UnavailableError](err); !ok || away.Part != wire.PartPostgres || away.Hint != want {
		t.Errorf("%#v", err)
	}

	whole := buckets{objects.NewCatalog(objects.NewDatabase(testenv.PoolOf(t, pg.GatewayURL), 0))}
	if got, err := whole.InspectBucket(t.Context(), "orders"); err != nil || got.Keep != "none" {
		t.Errorf("%+v, %v", got, err)
	}
	err = partly(bucketError(t.Context(), "orders", objects.ErrRetained), []string{"rule", "keep", "write_once"}, 2)
	if !errors.Is(err, api.ErrConflict) || !strings.HasSuffix(err.Error(), "; rule is set, keep is set, write_once is not") {
		t.Error(err)
	}
}
