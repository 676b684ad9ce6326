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
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
	"github.com/fencegate/fencegate/internal/testenv"
)

// firstBatch is the size of a reserve's first batch.
const firstBatch = 8

// reserving limits the reserve to its first batch.
func reserving(cfg *config) { cfg.Reserve = firstBatch }

const announcedBlobs = "SELECT count(*) FROM objects.blobs WHERE state = 'pending'" // of the reserve and of uploads

// reserved waits until the server has announced a batch after the first upload, and made its places.
func (w *world) reserved(live int) {
	w.t.Helper()
	testenv.Eventually(w.t, "a batch is reserved", func() bool { return len(w.reserve()) == firstBatch })
	w.left(firstBatch, live)
}

// left checks how many blobs are reserved, and how many others there are.
func (w *world) left(reserved, live int) {
	w.t.Helper()
	w.reserveIsWhole()
	if n := len(w.reserve()); n != reserved {
		w.t.Errorf("%d blobs are reserved, want %d", n, reserved)
	}
	if pending, blobs := w.pending(), w.blobs(); pending != 0 || blobs != live {
		w.t.Errorf("beside them %d blobs are pending, %d stored, want 0 and %d", pending, blobs, live)
	}
}

// The other tests use the default settings, which users have.
func TestByDefaultASmallUploadTakesAReservedBlob(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, way option) {
		reserved := int32(0)
		w := setup(t, way, func(cfg *config) {
			if cfg.Reserve == 0 {
				reserved = 1
			}
		})
		put(t, w.lease("orders/1001", 5), w.bucket(), invoice, "data")
		if puts, fills := w.store.puts.Load(), w.store.fills.Load(); fills != reserved || puts != 1-reserved {
			t.Errorf("%d blobs had been reserved, %d announced; want %d and %d", fills, puts, reserved, 1-reserved)
		}
		if n := len(w.reserve()); n != int(reserved)*(firstBatch-1) {
			t.Errorf("%d blobs are reserved", n)
		}
		w.nothingLeft(1, 1)
	})
}

func TestSmallUploadsTakeReservedBlobs(t *testing.T) {
	t.Parallel()
	w := start(t, reserving)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	put(t, holder, bucket, invoice, "announces its own")
	w.reserved(1)
	put(t, holder, bucket, invoice, "takes one")
	if n := w.count(`SELECT count(*) FROM objects.blobs b JOIN objects.pointers p ON p.version = b.version
		WHERE right(b.id::text, 2) = (SELECT right(r.id::text, 2) FROM objects.blobs r WHERE r.state = 'pending' LIMIT 1)`); n != 1 { // the batch's folder
		t.Error("the upload took no blob of the batch")
	}
	w.left(firstBatch-1, 2)
	if got := get(t, holder, bucket, invoice); got != "takes one" {
		t.Errorf("the object holds %q", got)
	}
	for i := range 3 * firstBatch { // needs further batches, which may not be ready in time
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
	w := start(t, reserving)
	bucket := w.bucket()
	stale := w.lease("orders/1001", 5)
	put(t, stale, bucket, invoice, "before")
	w.reserved(1)
	w.arm("orders/1001", 6)
	_, err := tryPut(t, stale, bucket, invoice, "after")
	wantRefused(t, err, 412, "StaleFencingToken")
	w.left(firstBatch-1, 1)
	if got := get(t, w.root(), bucket, invoice); got != "before" {
		t.Errorf("the object holds %q", got)
	}
}

// If the reserve is gone for any reason, an upload announces a blob of its own.
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
			swept, err := maintenance.New(objects.NewDatabase(poolOf(w.t, w.pg.GatewayURL), 0), w.store.Store).Sweep(w.t.Context(), maintenance.Sweep{PendingAge: time.Nanosecond})
			if err != nil || swept.Condemned != firstBatch || swept.Deleted != firstBatch {
				w.t.Errorf("swept %+v, %v", swept, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, reserving)
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
			testenv.Eventually(t, "the rest of the batch is given up", func() bool { return w.count(announcedBlobs) == 0 })
			testenv.Eventually(t, "another batch is reserved", func() bool {
				put(t, holder, bucket, invoice, "again")
				return len(w.reserve()) > 0
			})
		})
	}
}

func TestAStopGivesTheReserveBack(t *testing.T) {
	t.Parallel()
	w := start(t, reserving)
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
	w := start(t, reserving, func(cfg *config) {
		inner := cfg.Store.(*spy)
		store = &full{Dir: inner.Store.(*blob.Dir)}
		inner.Store = store
	})
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	begun := time.Now()
	put(t, holder, bucket, invoice, "first")
	testenv.Eventually(t, "what was half made is taken back", func() bool { return store.tried.Load() == 1 && w.count(announcedBlobs) == 0 && w.blobs() == 1 })
	for range 5 {
		put(t, holder, bucket, invoice, "and others")
	}
	if n, took := store.tried.Load(), time.Since(begun); n > 1+int32(took/time.Second) {
		t.Errorf("tried %d times within %v, want one second between two tries", n, took)
	}
}

// A store without places may overwrite a blob: each upload has an id of its own.
func TestAStoreWithoutPlacesKeepsNoReserve(t *testing.T) {
	t.Parallel()
	w := setup(t, func(cfg *config) { cfg.Store = struct{ blob.Store }{cfg.Store} })
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	put(t, holder, bucket, invoice, "first")
	put(t, holder, bucket, invoice, "second")
	if n := w.count("SELECT count(*) FROM objects.blobs"); n != 2 {
		t.Errorf("%d blobs are announced, want those of two uploads", n)
	}
}

// If the answer of the announcement is lost, it is repeated, and nothing exists twice.
func TestAnAnnouncementWhoseAnswerIsLostIsRepeated(t *testing.T) {
	t.Parallel()
	f := &faulty{}
	w := start(t, reserving, throughFaulty(t, f))
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
