//go:build unix

package s3_test

import (
	"context"
	"errors"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
)

func TestAStoreOfAnotherDatabaseIsNeitherWrittenNorSwept(t *testing.T) {
	t.Parallel()
	first, second := setup(t), start(t) // the second one has not checked its store yet
	bucket := first.bucket()
	holder := first.lease("orders/1001", 5)
	put(t, holder, bucket, invoice, "data") // marks the store
	stranger := objects.NewDatabase(poolOf(t, second.pg.GatewayURL), 0)
	var foreign *maintenance.StoreOwnerError
	for name, err := range map[string]error{
		"claim": maintenance.New(stranger, first.store).Claim(t.Context(), false),
		"sweep": func() error {
			_, err := maintenance.New(stranger, first.store).Sweep(t.Context(), maintenance.Sweep{Store: true})
			return err
		}(),
	} {
		if !errors.As(err, &foreign) || !strings.Contains(err.Error(), "fencegate objects claim") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	second.store.Store = first.store.Store
	_, err := tryPut(t, second.lease("orders/1001", 5), second.bucket(), invoice, "mine")
	wantRefused(t, err, 503, "ServiceUnavailable")
	if err := second.srv.Keeper().Check(t.Context()); !errors.As(err, &foreign) {
		t.Errorf("CheckStore: got %v", err)
	}
	if n := first.blobs(); n != 1 {
		t.Errorf("%d blobs are stored, want 1", n)
	}
	// An explicit claim changes the owner; then the first database is the stranger.
	if err := maintenance.New(stranger, first.store).Claim(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if _, err := first.srv.Keeper().Sweep(t.Context(), maintenance.Sweep{}); !errors.As(err, &foreign) {
		t.Errorf("the first one's sweep: got %v", err)
	}
}

func TestBlobsWithoutAMarkAreOnlyClaimedByTheDatabaseThatKnowsThem(t *testing.T) {
	t.Parallel()
	w := start(t) // the store has no mark yet
	id := blob.NewID()
	if err := w.store.Put(t.Context(), id, body("whose?"), 6); err != nil {
		t.Fatal(err)
	}
	var foreign *maintenance.StoreOwnerError
	if err := w.srv.Keeper().Check(t.Context()); !errors.As(err, &foreign) || foreign.Mark != "" {
		t.Errorf("got %v", err)
	}
	if _, err := w.admin.Exec(t.Context(), "INSERT INTO objects.blobs (id, state) VALUES ($1, 'live')", id.String()); err != nil {
		t.Fatal(err)
	}
	db := objects.NewDatabase(poolOf(t, w.pg.GatewayURL), 0)
	if _, err := maintenance.New(db, w.store).Sweep(t.Context(), maintenance.Sweep{DryRun: true}); err != nil {
		t.Error(err)
	}
	if mark, err := w.store.Owner(t.Context()); err != nil || mark != "" {
		t.Errorf("a dry run marked the store: %q, %v", mark, err)
	}
	if err := maintenance.New(db, w.store).Claim(t.Context(), false); err != nil {
		t.Errorf("its own blobs: %v", err)
	}
	// Another folder, on another gateway's own disk, or hidden by a missing mount.
	if err := maintenance.New(db, dir(t)).Claim(t.Context(), false); !errors.As(err, &foreign) || !foreign.Empty || !strings.Contains(err.Error(), "is its folder mounted") {
		t.Errorf("an empty store beside it: %v", err)
	}
}

func TestBlobsThatNoRowKnowsGetTheWholeGraceAndNamedOnesStay(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	put(t, holder, bucket, invoice, "data")
	// A row is lost for an unknown reason.
	if _, err := w.admin.Exec(t.Context(), "DELETE FROM objects.blobs WHERE state = 'live'"); err != nil {
		t.Fatal(err)
	}
	if err := w.store.Put(t.Context(), blob.NewID(), body("unknown"), 7); err != nil {
		t.Fatal(err)
	}
	scan := maintenance.Sweep{Store: true, UnknownAge: time.Nanosecond}
	w.sweep(maintenance.Swept{}, maintenance.Sweep{Store: true}) // too young
	dry := scan
	dry.DryRun = true
	for _, o := range []maintenance.Sweep{dry, scan} {
		w.sweep(maintenance.Swept{Adopted: 1, Listed: 1}, o)
	}
	w.sweep(maintenance.Swept{Listed: 1}, scan)
	if n := w.blobs(); n != 2 {
		t.Errorf("%d blobs are stored, want 2", n)
	}
	w.age("25 hours")
	w.sweep(maintenance.Swept{Listed: 1, Condemned: 1, Deleted: 1}, scan)
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
	w.sweep(maintenance.Swept{Pruned: want}, maintenance.Sweep{DryRun: true})
	w.sweep(maintenance.Swept{Pruned: want}, maintenance.Sweep{})
	w.sweep(maintenance.Swept{}, maintenance.Sweep{})
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
	w.sweep(maintenance.Swept{Condemned: 5, Deleted: 5}, maintenance.Sweep{Rate: 10})
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
	path := filepath.Join(folder, id[30:], id+".part") // its row is gone after a restore
	if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	db := objects.NewDatabase(poolOf(t, w.pg.GatewayURL), 0)
	for _, want := range []maintenance.Swept{{Adopted: 1}, {Condemned: 1, Deleted: 1}} {
		if got, err := maintenance.New(db, store).Sweep(t.Context(), maintenance.Sweep{Store: true, UnknownAge: time.Nanosecond}); err != nil || got != want {
			t.Errorf("swept %+v, %v; want %+v", got, err, want)
		}
		w.age("25 hours")
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// unlisted is a store that cannot say which blobs it has.
type unlisted struct{ folder }

func (unlisted) All(context.Context) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) { yield(blob.Info{}, errStuck) }
}

func TestAScanThatFailsStopsNoSweep(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	for _, data := range []string{"one", "two", "three"} {
		put(t, holder, bucket, invoice, data)
	}
	w.age("25 hours")
	if err := w.store.Put(t.Context(), blob.NewID(), body("unknown"), 7); err != nil {
		t.Fatal(err)
	}
	all := maintenance.Sweep{Store: true, UnknownAge: time.Nanosecond}
	whole := w.store.Store.(folder)
	w.store.Store = unlisted{whole}
	want := maintenance.Swept{Condemned: 2, Deleted: 2}
	got, err := w.srv.Keeper().Sweep(t.Context(), all)
	if got != want || !errors.Is(err, errStuck) || !strings.Contains(err.Error(), "look for unknown blobs") {
		t.Errorf("swept %+v, %v; want %+v and the store's error", got, err, want)
	}
	w.store.Store = whole
	if n := w.blobs(); n < 2 {
		t.Errorf("%d blobs are stored, want the object's and the one that nobody knows yet", n)
	}
	w.sweep(maintenance.Swept{Adopted: 1}, all)
	w.liveBlobsAreCurrent()
}

// taken is a store that another database claims during a sweep.
type taken struct {
	folder

	deleted atomic.Int32
}

func (s *taken) Delete(ctx context.Context, id blob.ID) error {
	if s.deleted.Add(1) == 1 {
		if err := s.SetOwner(ctx, "another database"); err != nil {
			return err
		}
	}
	return s.folder.Delete(ctx, id)
}

// A sweep may take hours. The new owner's knowledge of these blobs is newer.
func TestASweepEndsWhenItsStoreIsTaken(t *testing.T) {
	t.Parallel()
	w := setup(t)
	put(t, w.lease("orders/1001", 5), w.bucket(), invoice, "data") // marks the store
	w.exec("INSERT INTO objects.blobs (id, state) SELECT gen_random_uuid(), 'condemned' FROM generate_series(1, 1200)")
	store := &taken{folder: w.store.Store.(folder)}
	_, err := maintenance.New(objects.NewDatabase(poolOf(t, w.pg.GatewayURL), 0), store).Sweep(t.Context(), maintenance.Sweep{})
	if _, foreign := errors.AsType[*maintenance.StoreOwnerError](err); !foreign {
		t.Errorf("got %v", err)
	}
	if n := store.deleted.Load(); n > 500 { // those of the step in progress
		t.Errorf("it deleted %d blobs", n)
	}
}
