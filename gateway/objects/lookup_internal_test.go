//go:build unix

package objects

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/internal/testenv"
)

// asking makes look-ups in a database with a bucket.
type asking struct {
	*lookups

	t  *testing.T
	db *pgxpool.Pool // beside them
}

func setUpLookups(t *testing.T) *asking {
	t.Helper()
	pg := testenv.Postgres(t)
	a := &asking{t: t, db: pg.Pool(t)}
	a.lookups = newLookups(NewDatabase(testenv.PoolOf(t, pg.GatewayURL), time.Minute), slog.New(slog.NewTextHandler(t.Output(), nil)))
	a.exec("SELECT objects.create_bucket('b', 0, 'none')")
	return a
}

func (a *asking) exec(sql string, args ...any) {
	a.t.Helper()
	if _, err := a.db.Exec(a.t.Context(), sql, args...); err != nil {
		a.t.Fatal(err)
	}
}

// write makes a new version current.
func (a *asking) write(key string) blob.ID {
	a.t.Helper()
	id := blob.NewID()
	a.exec(`WITH v AS (INSERT INTO objects.versions (id, bucket, key, blobs, blob_sizes, size, etag, attributes, resource, token)
		VALUES ($1, 'b', $2, ARRAY[$1, $3]::uuid[], '{3, 4}', 7, 'e-' || $2, '{"content_type": "text/plain", "part_checksums": ["x"]}', 'b', 1) RETURNING *)
		INSERT INTO objects.pointers (bucket, key, version, size, etag, modified_at) SELECT bucket, key, id, size, etag, created_at FROM v
		ON CONFLICT (bucket, key) DO UPDATE SET version = excluded.version`, UUID(id), key, UUID(blob.NewID()))
	return id
}

// as checks the result of a look-up of a key.
func (l *lookup) as(t *testing.T, id blob.ID, there bool) {
	t.Helper()
	c := l.found
	switch {
	case !l.done || c.bucket != (l.bucket == "b") || c.key != there:
		t.Errorf("%s/%s: done %v, bucket %v, key %v", l.bucket, l.key, l.done, c.bucket, c.key)
	case c.key && (c.ID != id || c.Blobs[0] != id || len(c.Blobs) != 2 || c.ETag != "e-"+l.key || c.Size != 7 || !slices.Equal(c.BlobSizes, []int64{3, 4}) ||
		c.Attributes.ContentType != "text/plain" || c.Attributes.PartChecksums != nil || c.Kept || time.Since(c.CreatedAt).Abs() > time.Hour):
		t.Errorf("%s: %+v", l.key, c)
	}
}

func TestLookUpsOfAQuestionAreAnsweredEach(t *testing.T) {
	t.Parallel()
	a := setUpLookups(t)
	id, other := a.write("k"), a.write("other")
	var group []*lookup
	for _, at := range [][2]string{{"b", "k"}, {"b", "absent"}, {"no", "k"}, {"b", "other"}, {"b", "k"}} {
		group = append(group, &lookup{bucket: at[0], key: at[1], began: time.Now()})
	}
	for n := range group { // alone and together
		for _, l := range group[:n+1] {
			l.done, l.found = false, current{}
		}
		a.ask(group[:n+1])
		for i, l := range group[:n+1] {
			l.as(t, map[int]blob.ID{0: id, 3: other, 4: id}[i], i != 1 && i != 2)
		}
	}
}

// A text that PostgreSQL cannot store fails only its own look-up.
func TestALookUpThatFailsFailsAlone(t *testing.T) {
	t.Parallel()
	a := setUpLookups(t)
	id := a.write("good")
	group := []*lookup{{bucket: "b", key: "good", began: time.Now()}, {bucket: "b", key: "not\xfftext", began: time.Now()}}
	a.ask(group)
	for _, l := range group {
		if l.done {
			t.Errorf("%q is done", l.key)
		}
	}
	if c, err := a.find(t.Context(), "b", "good"); err != nil || c.ID != id {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := a.find(t.Context(), "b", "not\xfftext"); err == nil {
		t.Error("it was found")
	}
}

// Each of many concurrent look-ups sees what was written before it began.
func TestALookUpSeesWhatWasWrittenBeforeItBegan(t *testing.T) {
	t.Parallel()
	a := setUpLookups(t)
	var all sync.WaitGroup
	for n := range 8 {
		key := fmt.Sprint("k", n)
		all.Go(func() {
			for range 30 {
				id := a.write(key)
				if c, err := a.find(t.Context(), "b", key); err != nil || c.ID != id {
					t.Errorf("%x, %v; want %x", c.ID, err, id)
				}
			}
		})
	}
	all.Wait()
}

// A look-up that waits for others has the same deadline as one that runs alone.
func TestALookUpEndsAtItsDeadline(t *testing.T) {
	t.Parallel()
	a := setUpLookups(t)
	a.write("k")
	tx, err := a.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), "LOCK TABLE objects.pointers"); err != nil {
		t.Fatal(err)
	}
	a.lookups.db.timeout = time.Second
	var all sync.WaitGroup
	began := time.Now()
	for range 40 {
		all.Go(func() {
			if _, err := a.find(t.Context(), "b", "k"); err == nil {
				t.Error("it was found")
			}
		})
	}
	all.Wait()
	if took := time.Since(began); took > 30*time.Second { // one after the other they would take 40
		t.Errorf("they took %s", took)
	}
}
