//go:build unix

package s3_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/s3"
)

// firstBatch is how many blobs a reserve begins with.
const firstBatch = 8

// reserving lets the server keep blobs ready, in a folder that makes places for them.
func reserving(cfg *s3.Config) {
	cfg.Reserve = firstBatch
	cfg.Store = cfg.Store.(*spy).Store
}

func (w *world) pending() int {
	w.t.Helper()
	return w.count("SELECT count(*) FROM objects.blobs WHERE state = 'pending'")
}

// reserved waits until the server has announced a batch after a first upload, and
// made its places.
func (w *world) reserved(live int) {
	w.t.Helper()
	eventually(w.t, "a batch is reserved", func() bool { return w.pending() == firstBatch && w.blobs() == live+firstBatch })
}

func TestSmallUploadsTakeReservedBlobs(t *testing.T) {
	t.Parallel()
	w := setup(t, reserving)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	put(t, holder, bucket, invoice, "announces its own")
	w.reserved(1)
	put(t, holder, bucket, invoice, "takes one")
	if n := w.count(`SELECT count(*) FROM objects.blobs b JOIN objects.pointers p ON p.version = b.version
		WHERE right(b.id::text, 2) = (SELECT right(r.id::text, 2) FROM objects.blobs r WHERE r.state = 'pending' LIMIT 1)`); n != 1 { // the batch's folder
		t.Error("the upload took no blob of the batch")
	}
	if w.pending() != firstBatch-1 || w.blobs() != firstBatch+1 {
		t.Errorf("%d blobs are pending, %d stored", w.pending(), w.blobs())
	}
	if got := get(t, holder, bucket, invoice); got != "takes one" {
		t.Errorf("the object holds %q", got)
	}
	for i := range 3 * firstBatch { // which needs other batches, made meanwhile or not yet
		text := strconv.Itoa(i)
		put(t, holder, bucket, "1001/"+text, text)
		if got := get(t, holder, bucket, "1001/"+text); got != text {
			t.Errorf("object %d holds %q", i, got)
		}
	}
	w.liveBlobsAreCurrent()
}

func TestAStaleUploadLeavesNothingOfAReserve(t *testing.T) {
	t.Parallel()
	w := setup(t, reserving)
	bucket := w.bucket()
	stale := w.lease("orders/1001", 5)
	put(t, stale, bucket, invoice, "before")
	w.reserved(1)
	w.arm("orders/1001", 6)
	_, err := tryPut(t, stale, bucket, invoice, "after")
	wantRefused(t, err, 412, "StaleFencingToken")
	if w.pending() != firstBatch-1 || w.blobs() != firstBatch {
		t.Errorf("%d blobs are pending, %d stored", w.pending(), w.blobs())
	}
	if got := get(t, w.root(), bucket, invoice); got != "before" {
		t.Errorf("the object holds %q", got)
	}
}

// Whatever took the reserve away, the upload announces a blob of its own.
func TestAReserveThatIsGoneCostsNoUpload(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(w *world){
		"condemned, and its bytes not yet deleted": func(w *world) { w.exec("UPDATE objects.blobs SET state = 'condemned' WHERE state = 'pending'") },
		"forgotten by PostgreSQL":                  func(w *world) { w.exec("DELETE FROM objects.blobs WHERE state = 'pending'") },
		"without places": func(w *world) {
			for info, err := range w.store.All(w.t.Context()) {
				if err != nil {
					w.t.Fatal(err)
				}
				if info.Size == 0 {
					if err := w.store.Delete(w.t.Context(), info.ID); err != nil {
						w.t.Fatal(err)
					}
				}
			}
		},
		"taken by a sweep of another process": func(w *world) {
			swept, err := s3.NewCatalog(poolOf(w.t, w.pg.GatewayURL)).Sweep(w.t.Context(), w.store.Store, s3.Sweep{PendingAge: time.Nanosecond})
			if err != nil || swept.Condemned != firstBatch || swept.Deleted != firstBatch {
				w.t.Errorf("swept %+v, %v", swept, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, reserving)
			bucket := w.bucket()
			holder := w.lease("orders/1001", 5)
			put(t, holder, bucket, invoice, "before")
			w.reserved(1)
			lose(w)
			if res, text := w.send(w.putRaw(5, "id", "after")); res.StatusCode != http.StatusOK {
				t.Fatalf("got %d %s", res.StatusCode, text)
			}
			if got := get(t, holder, bucket, invoice); got != "after" {
				t.Errorf("the object holds %q", got)
			}
			if n := w.count("SELECT count(*) FROM objects.versions"); n != 2 {
				t.Errorf("%d versions are recorded, want 2", n)
			}
			w.liveBlobsAreCurrent()
			eventually(t, "the rest of the batch is given up", func() bool { return w.pending() == 0 })
			eventually(t, "another batch is reserved", func() bool {
				put(t, holder, bucket, invoice, "again")
				return w.pending() > 0
			})
		})
	}
}

func TestAStopGivesTheReserveBack(t *testing.T) {
	t.Parallel()
	w := setup(t, reserving)
	bucket := w.bucket()
	put(t, w.lease("orders/1001", 5), bucket, invoice, "stays")
	w.reserved(1)
	w.stop()
	<-w.ended
	if n := w.count("SELECT count(*) FROM objects.blobs"); n != 1 || w.blobs() != 1 {
		t.Errorf("%d rows and %d blobs are left, want 1 and 1", n, w.blobs())
	}
}

// full is a folder in which no places can be made.
type full struct {
	*blob.Dir

	tried atomic.Int32
}

func (f *full) Reserve(ctx context.Context, ids []blob.ID) error {
	defer f.tried.Add(1)
	if err := f.Dir.Reserve(ctx, ids[:len(ids)/2]); err != nil {
		return err
	}
	return fmt.Errorf("reserve: %w", syscall.ENOSPC)
}

func TestUploadsGoOnWhereNothingCanBeReserved(t *testing.T) {
	t.Parallel()
	var store *full
	w := setup(t, reserving, func(cfg *s3.Config) {
		store = &full{Dir: cfg.Store.(*blob.Dir)}
		cfg.Store = store
	})
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	put(t, holder, bucket, invoice, "first")
	eventually(t, "what was half made is taken back", func() bool { return store.tried.Load() == 1 && w.pending() == 0 && w.blobs() == 1 })
	for range 5 {
		put(t, holder, bucket, invoice, "and others")
	}
	if n := store.tried.Load(); n != 1 {
		t.Errorf("tried %d times within a moment", n)
	}
}

// A store that makes no places may write over a blob: each upload has an id of its own.
func TestAStoreWithoutPlacesKeepsNoReserve(t *testing.T) {
	t.Parallel()
	w := setup(t, func(cfg *s3.Config) {
		cfg.Store = struct{ blob.Store }{cfg.Store}
		cfg.Reserve = firstBatch
	})
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	put(t, holder, bucket, invoice, "first")
	put(t, holder, bucket, invoice, "second")
	if n := w.count("SELECT count(*) FROM objects.blobs"); n != 2 {
		t.Errorf("%d blobs are announced, want those of two uploads", n)
	}
}

// The answer of the announcement is lost: it is repeated, and nothing is there twice.
func TestAnAnnouncementWhoseAnswerIsLostIsRepeated(t *testing.T) {
	t.Parallel()
	f := &faulty{}
	w := setup(t, reserving, throughFaulty(t, f))
	bucket := w.bucket()
	f.strike("objects.reserve_blobs", false, loseReply)
	put(t, w.lease("orders/1001", 5), bucket, invoice, "first")
	w.reserved(1)
	if f.left() != 0 {
		t.Error("nothing was lost")
	}
}

func (w *world) exec(sql string) {
	w.t.Helper()
	if _, err := w.admin.Exec(w.t.Context(), sql); err != nil {
		w.t.Fatal(err)
	}
}
