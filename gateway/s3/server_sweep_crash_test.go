//go:build unix

package s3_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"
	"time"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
)

var errCrashed = errors.New("crashed by the test")

// crash ends a sweep at one of its steps, before or after a statement or a call of the store. From then on every step
// fails.
type crash struct {
	blob.Store

	mu   sync.Mutex
	left int // steps before the crash
	dead bool
}

func (c *crash) step() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left--
	c.dead = c.dead || c.left == 0
	return c.dead
}

// TraceQueryStart implements [pgx.QueryTracer].
func (c *crash) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	if !c.step() {
		return ctx
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	return gone
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (c *crash) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) { c.step() }

func (c *crash) Delete(ctx context.Context, id blob.ID) error {
	if c.step() {
		return errCrashed
	}
	err := c.Store.Delete(ctx, id)
	if c.step() {
		return errCrashed
	}
	return err
}

func (c *crash) All(ctx context.Context) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		if c.step() {
			yield(blob.Info{}, errCrashed)
			return
		}
		for info, err := range c.Store.All(ctx) {
			if !yield(info, err) {
				return
			}
		}
	}
}

// traced returns a pool of the gateway's login whose statements count as the crash's steps.
func (w *world) traced(c *crash) *pgxpool.Pool {
	w.t.Helper()
	config := poolOf(w.t, w.pg.GatewayURL).Config()
	config.ConnConfig.Tracer = c
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(w.t.Context(), config)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(pool.Close)
	return pool
}

// litter creates some of everything that a sweep deletes, and what must stay.
func (w *world) litter(holder *awss3.Client, bucket, kept string, round int) (live map[string]string) {
	w.t.Helper()
	live = map[string]string{}
	key := fmt.Sprintf("1001/%d", round)
	for _, b := range []string{bucket, kept} { // superseded, kept, beyond the limit, or shared with a restored version
		first := put(w.t, holder, b, key, "first of "+key)
		put(w.t, holder, b, key, "second of "+key)
		live[b] = "second of " + key
		if b == kept && round%2 == 0 {
			source := kept + "/" + key + "?versionId=" + *first.VersionId
			if _, err := holder.CopyObject(w.t.Context(), &awss3.CopyObjectInput{Bucket: &kept, Key: &key, CopySource: &source}); err != nil {
				w.t.Fatal(err)
			}
			live[b] = "first of " + key
		}
	}
	begin(w.t, holder, bucket, "").part(1, []byte("a part of an upload that is never completed"))
	unknown := blob.NewID()
	if err := w.store.Put(w.t.Context(), unknown, body("unknown"), 7); err != nil {
		w.t.Fatal(err)
	}
	lost := blob.NewID() // the reserve of a crashed server
	w.exec("SELECT objects.reserve_blobs(ARRAY['" + lost.String() + "'::uuid])")
	if err := w.store.Store.(folder).Reserve(w.t.Context(), []blob.ID{lost}); err != nil {
		w.t.Fatal(err)
	}
	return live
}

func TestASweepThatCrashesAtAnyStepLosesNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket, kept := w.bucket(), "kept"
	if _, err := w.srv.Catalog().EnsureBucket(t.Context(), kept, objects.NoRule()); err != nil {
		t.Fatal(err)
	}
	if err := w.srv.Catalog().SetKeep(t.Context(), kept, objects.Keep{Versions: 1}); err != nil {
		t.Fatal(err)
	}
	holder := w.lease("orders/1001", 5)
	c := &crash{Store: w.store}
	db := objects.NewDatabase(w.traced(c), 0)
	all := maintenance.Sweep{Store: true, UnknownAge: time.Nanosecond}
	wanted := map[string]map[string]string{}
	for round, done := 1, false; !done; round++ {
		wanted[fmt.Sprintf("1001/%d", round)] = w.litter(holder, bucket, kept, round)
		w.age("25 hours")
		c.mu.Lock()
		c.left, c.dead = round, false
		c.mu.Unlock()
		_, err := maintenance.New(db, c).Sweep(t.Context(), all)
		c.mu.Lock()
		done = !c.dead
		c.mu.Unlock()
		if err != nil && done {
			t.Errorf("round %d: crashed %v, error %v", round, !done, err)
		}
		w.liveBlobsAreCurrentOrKept()
		if _, err := w.srv.Keeper().Sweep(t.Context(), all); err != nil { // the next one continues
			t.Fatal(err)
		}
		if round > 200 {
			t.Fatal("the sweep never ends")
		}
	}
	if len(wanted) < 30 {
		t.Errorf("there were only %d steps to crash at", len(wanted))
	}
	for key, live := range wanted {
		for b, want := range live {
			if got := get(t, holder, b, key); got != want {
				t.Errorf("%s in %s holds %q, want %q", key, b, got, want)
			}
		}
	}
	for range 2 { // the last adopted or superseded blobs have a grace period
		w.age("25 hours")
		if _, err := w.srv.Keeper().Sweep(t.Context(), all); err != nil {
			t.Fatal(err)
		}
	}
	if n, want := w.blobs(), w.count("SELECT count(*) FROM objects.blobs WHERE state = 'live'"); n != want {
		t.Errorf("%d blobs are stored, and %d are live", n, want)
	}
}

// liveBlobsAreCurrentOrKept checks that every blob that a current or kept version lists is live and stored.
func (w *world) liveBlobsAreCurrentOrKept() {
	w.t.Helper()
	const named = `SELECT unnest(v.blobs) AS id FROM objects.versions v LEFT JOIN objects.pointers p ON p.version = v.id WHERE p.version IS NOT NULL OR v.kept_order IS NOT NULL`
	if n := w.count("SELECT count(*) FROM (" + named + ") c LEFT JOIN objects.blobs b USING (id) WHERE b.state IS DISTINCT FROM 'live'"); n != 0 {
		w.t.Errorf("%d blobs of current or kept versions are not live", n)
	}
	rows, err := w.admin.Query(w.t.Context(), named)
	if err != nil {
		w.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[[16]byte])
	if err != nil {
		w.t.Fatal(err)
	}
	for _, id := range ids {
		if _, err := w.store.Size(w.t.Context(), id); err != nil {
			w.t.Errorf("a blob of a current or kept version: %v", err)
		}
	}
}

func TestSweepsThatTakeAllAtOnceLoseNoObjectThatWasAcknowledged(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, way option) {
		w := setup(t, way)
		bucket := w.bucket()
		if err := w.srv.Catalog().SetKeep(t.Context(), bucket, objects.Keep{Versions: 1}); err != nil {
			t.Fatal(err)
		}
		holder := w.lease("orders/1001", 5)
		greedy := maintenance.Sweep{PendingAge: time.Nanosecond, SupersededAge: time.Nanosecond, Store: true, UnknownAge: time.Nanosecond}
		writing, stop := context.WithTimeout(t.Context(), 2*time.Minute)
		defer stop()
		var sweeps, writers sync.WaitGroup
		other := objects.NewDatabase(poolOf(t, w.pg.GatewayURL), 0)
		for i := range 3 { // two gateways, and a command
			sweeps.Go(func() {
				for writing.Err() == nil {
					var err error
					if i == 0 {
						_, err = maintenance.New(other, w.store).Sweep(t.Context(), greedy)
					} else {
						_, err = w.srv.Keeper().Sweep(t.Context(), greedy)
					}
					if err != nil {
						t.Errorf("sweep: %v", err)
						return
					}
				}
			})
		}
		acknowledged := make([]string, 4)
		refused := make([]int, len(acknowledged))
		for i := range acknowledged {
			writers.Go(func() {
				key := fmt.Sprintf("1001/%d", i)
				var before *string
				for n := 0; n < 30 || acknowledged[i] == "" && writing.Err() == nil; n++ { // fast sweeps may refuse all thirty
					data := fmt.Sprintf("%d of %s", n, key)
					if n%5 == 4 && before != nil { // restores a version that may be swept before
						source := bucket + "/" + key + "?versionId=" + *before
						if out, err := holder.CopyObject(t.Context(), &awss3.CopyObjectInput{Bucket: &bucket, Key: &key, CopySource: &source}); err == nil {
							acknowledged[i], before = "restored", out.VersionId
						}
						continue
					}
					out, err := tryPut(t, holder, bucket, key, data)
					if err != nil {
						refused[i]++ // discarded while in progress
						continue
					}
					acknowledged[i], before = data, out.VersionId
				}
			})
		}
		writers.Wait()
		stop()
		sweeps.Wait()
		w.liveBlobsAreCurrentOrKept()
		for i, want := range acknowledged {
			got := get(t, holder, bucket, fmt.Sprintf("1001/%d", i))
			if want == "" || want != "restored" && got != want {
				t.Errorf("key %d holds %q, acknowledged was %q (%d refused)", i, got, want, refused[i])
			}
		}
	})
}
