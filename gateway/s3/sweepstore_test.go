//go:build unix

package s3_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/s3"
)

func TestAStoreOfAnotherDatabaseIsNeitherWrittenNorSwept(t *testing.T) {
	t.Parallel()
	first, second := setup(t), start(t) // the second one has not looked at its store yet
	bucket := first.bucket()
	holder := first.lease("orders/1001", 5)
	put(t, holder, bucket, invoice, "data") // marks the store
	stranger := s3.NewCatalog(poolOf(t, second.pg.GatewayURL))
	var foreign *s3.StoreOwnerError
	for name, err := range map[string]error{
		"claim": stranger.Claim(t.Context(), first.store, false),
		"sweep": func() error { _, err := stranger.Sweep(t.Context(), first.store, s3.Sweep{Store: true}); return err }(),
	} {
		if !errors.As(err, &foreign) || !strings.Contains(err.Error(), "fencegate objects claim") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	second.store.Store = first.store.Store
	_, err := tryPut(t, second.lease("orders/1001", 5), second.bucket(), invoice, "mine")
	wantRefused(t, err, 503, "ServiceUnavailable")
	if err := second.srv.CheckStore(t.Context()); !errors.As(err, &foreign) {
		t.Errorf("CheckStore: got %v", err)
	}
	if n := first.blobs(); n != 1 {
		t.Errorf("%d blobs are stored, want 1", n)
	}
	// By hand it changes hands; then the first one is the stranger.
	if err := stranger.Claim(t.Context(), first.store, true); err != nil {
		t.Fatal(err)
	}
	if _, err := first.srv.Sweep(t.Context(), s3.Sweep{}); !errors.As(err, &foreign) {
		t.Errorf("the first one's sweep: got %v", err)
	}
}

func TestBlobsWithoutAMarkAreOnlyClaimedByTheDatabaseThatKnowsThem(t *testing.T) {
	t.Parallel()
	w := start(t) // nobody has marked the store yet
	id := blob.NewID()
	if err := w.store.Put(t.Context(), id, body("whose?"), 6); err != nil {
		t.Fatal(err)
	}
	var foreign *s3.StoreOwnerError
	if err := w.srv.CheckStore(t.Context()); !errors.As(err, &foreign) || foreign.Mark != "" {
		t.Errorf("got %v", err)
	}
	if _, err := w.admin.Exec(t.Context(), "INSERT INTO objects.blobs (id, state) VALUES ($1, 'live')", id.String()); err != nil {
		t.Fatal(err)
	}
	catalog := s3.NewCatalog(poolOf(t, w.pg.GatewayURL))
	if _, err := catalog.Sweep(t.Context(), w.store, s3.Sweep{DryRun: true}); err != nil {
		t.Error(err)
	}
	if mark, err := w.store.Owner(t.Context()); err != nil || mark != "" {
		t.Errorf("a dry run marked the store: %q, %v", mark, err)
	}
	if err := catalog.Claim(t.Context(), w.store, false); err != nil {
		t.Errorf("its own blobs: %v", err)
	}
	// Another folder, on another gateway's own disk, or what a mount would hide.
	if err := catalog.Claim(t.Context(), dir(t), false); !errors.As(err, &foreign) || !foreign.Empty || !strings.Contains(err.Error(), "is its folder mounted") {
		t.Errorf("an empty store beside it: %v", err)
	}
}

func TestBlobsThatNoRowKnowsGetTheWholeGraceAndNamedOnesStay(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	put(t, holder, bucket, invoice, "data")
	if _, err := w.admin.Exec(t.Context(), "DELETE FROM objects.blobs WHERE state = 'live'"); err != nil { // a row is lost: nobody knows how
		t.Fatal(err)
	}
	if err := w.store.Put(t.Context(), blob.NewID(), body("unknown"), 7); err != nil {
		t.Fatal(err)
	}
	scan := s3.Sweep{Store: true, UnknownAge: time.Nanosecond}
	w.sweep(s3.Swept{}, s3.Sweep{Store: true}) // too young
	dry := scan
	dry.DryRun = true
	for _, o := range []s3.Sweep{dry, scan} {
		w.sweep(s3.Swept{Adopted: 1, Named: 1}, o)
	}
	w.sweep(s3.Swept{Named: 1}, scan)
	if n := w.blobs(); n != 2 {
		t.Errorf("%d blobs are stored, want 2", n)
	}
	w.age("25 hours")
	w.sweep(s3.Swept{Named: 1, Condemned: 1, Deleted: 1}, scan)
	if got := get(t, holder, bucket, invoice); got != "data" {
		t.Errorf("the object holds %q", got)
	}
}

func TestPruningGoesThroughManyKeysOfManyBucketsInShortSteps(t *testing.T) {
	t.Parallel()
	w := setup(t)
	if _, err := w.admin.Exec(t.Context(), `
		SELECT objects.create_bucket('b' || b, 0), objects.set_keep('b' || b, CASE b WHEN 3 THEN NULL ELSE b END, NULL) FROM generate_series(0, 4) b;
		INSERT INTO objects.versions (id, bucket, key, blobs, blob_sizes, size, etag, resource, token, kept_order, kept_at)
		SELECT gen_random_uuid(), 'b' || b, 'k' || k, '{}', '{}', 0, '', 'b', 1, nextval('objects.kept_order'), now()
		  FROM generate_series(0, 4) b, generate_series(1, 250) k, generate_series(1, 5) v`); err != nil {
		t.Fatal(err)
	}
	const want = 250 * (5 + 4 + 3 + 0 + 1)
	w.sweep(s3.Swept{Pruned: want}, s3.Sweep{DryRun: true})
	w.sweep(s3.Swept{Pruned: want}, s3.Sweep{})
	w.sweep(s3.Swept{}, s3.Sweep{})
	if n := w.count("SELECT count(*) FROM objects.versions WHERE kept_order IS NOT NULL"); n != 250*25-want {
		t.Errorf("%d versions are kept, want %d", n, 250*25-want)
	}
}

func TestASweepHoldsItsRate(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	for range 6 {
		put(t, holder, bucket, invoice, "data")
	}
	w.age("25 hours")
	begun := time.Now()
	w.sweep(s3.Swept{Condemned: 5, Deleted: 5}, s3.Sweep{Rate: 10})
	if took := time.Since(begun); took < 400*time.Millisecond {
		t.Errorf("five deletions at ten in a second took %v", took)
	}
}

func TestWhatACrashLeftOfABlobThatNobodyKnowsIsSweptToo(t *testing.T) {
	t.Parallel()
	w := setup(t)
	folder := t.TempDir()
	store, err := blob.OpenDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	id := blob.NewID().String()
	path := filepath.Join(folder, id[30:], id+".part") // and its row is gone with a restore
	if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	catalog := s3.NewCatalog(poolOf(t, w.pg.GatewayURL))
	for _, want := range []s3.Swept{{Adopted: 1}, {Condemned: 1, Deleted: 1}} {
		if got, err := catalog.Sweep(t.Context(), store, s3.Sweep{Store: true, UnknownAge: time.Nanosecond}); err != nil || got != want {
			t.Errorf("swept %+v, %v; want %+v", got, err, want)
		}
		w.age("25 hours")
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}
