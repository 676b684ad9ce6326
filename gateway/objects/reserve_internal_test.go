//go:build unix

package objects //nolint:testpackage // a reserve's age shows only inside

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestAReserveThatGrewOldIsNotHandedOut(t *testing.T) {
	t.Parallel()
	w, _, _ := newUploads(t)
	r := w.reserve
	r.fill(3)
	ids := slices.Clone(r.free)
	for i := range 2 {
		ids[i].made = ids[i].made.Add(-reserveAge)
	}
	r.set(ids)
	if id, ok := r.take(); ok {
		t.Errorf("%s was handed out", id)
	}
	r.expire()
	if id, ok := r.take(); !ok || id != ids[2].id {
		t.Errorf("got %s, %v, want the young one", id, ok)
	}
	if r.expiry == nil {
		t.Error("nobody looks after the young ones")
	}
	r.work.Wait()
	for i, one := range ids {
		_, err := w.store.Size(t.Context(), one.id)
		if stays := err == nil; stays != (i == 2) {
			t.Errorf("the place of blob %d: %v", i, err)
		}
	}
}

// newUploads returns a writer to a bucket that one lease may write to, with functions to put and read.
func newUploads(t *testing.T) (w *Writer, put func(key, text string), read func(key string) string) {
	t.Helper()
	pg := testenv.Postgres(t)
	pool := testenv.PoolOf(t, pg.GatewayURL)
	store, err := blob.OpenDir(t.TempDir())
	if err == nil {
		_, err = pg.Pool(t).Exec(t.Context(), "SELECT objects.create_bucket('b', 0, 'lease'); SELECT fence.raise('b', 1, sha256('x'), 'me')")
	}
	if err != nil {
		t.Fatal(err)
	}
	log, db := slog.New(slog.DiscardHandler), NewDatabase(pool, 10*time.Second)
	r := NewReader(db, store, log)
	w = NewWriter(t.Context(), Config{
		DB: db, Store: store, Log: log, Reserve: 128,
		Owned: func(context.Context) error { return nil }, Decided: func(time.Duration) {},
	}, r)
	t.Cleanup(w.Close)
	put = func(key, text string) {
		t.Helper()
		body := &textBody{Reader: strings.NewReader(text)}
		_, err := w.Put(t.Context(), Put{
			Change: Change{Bucket: "b", Key: key, Proof: Proof{Resource: "b", Token: 1}}, Size: int64(len(text)), Body: body,
			Attributes: func() Attributes { return Attributes{} },
		})
		if err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	return w, put, func(key string) string {
		v, err := r.Find(t.Context(), "b", key, "")
		if err != nil {
			return err.Error()
		}
		bytes, err := r.Open(t.Context(), v, 0, v.Size)
		if err != nil {
			return err.Error()
		}
		defer func() { _ = bytes.Close() }()
		all, err := io.ReadAll(bytes)
		return fmt.Sprint(string(all), err)
	}
}

// textBody is a body whose digests are not needed.
type textBody struct{ *strings.Reader }

func (b *textBody) ReadWhole(data []byte) error     { _, err := io.ReadFull(b, data); return err }
func (*textBody) Finish(int64) error                { return nil }
func (*textBody) Err() error                        { return nil }
func (*textBody) ETag() string                      { return "e" }
func (*textBody) Checksum() (algorithm, sum string) { return "", "" }

// set fixes the reserve to these blobs, and prevents refills.
func (r *reserve) set(free []reservedBlob) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free, r.resume = slices.Clone(free), time.Now().Add(time.Hour)
}

// A machine may continue from a snapshot taken while it ran: then two processes hold the same reserve, or one holds
// blobs that it has used already.
func TestACopyOfTheProcessDeletesNothing(t *testing.T) {
	t.Parallel()
	w, put, read := newUploads(t)
	w.reserve.fill(2)
	ids := slices.Clone(w.reserve.free)
	w.reserve.set(ids)
	put("k1", "acknowledged")
	w.reserve.set(ids)
	put("k2", "of the copy")
	w.reserve.work.Wait()
	for key, want := range map[string]string{"k1": "acknowledged<nil>", "k2": "of the copy<nil>"} {
		if got := read(key); got != want {
			t.Errorf("%s reads %q, want %q", key, got, want)
		}
	}

	w.reserve.fill(2)
	ids = slices.Clone(w.reserve.free)
	w.reserve.set(ids)
	put("k3", "acknowledged")
	w.reserve.giveBack([]blob.ID{ids[0].id, ids[1].id}) // by the copy
	if got := read("k3"); got != "acknowledged<nil>" {
		t.Errorf("k3 reads %q", got)
	}
	if _, err := w.store.Size(t.Context(), ids[1].id); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("the place that nobody used: %v", err)
	}
}

// A writer that fails with another writer's id does not delete the bytes.
func TestOnlyBytesThatNothingNamesAreForgotten(t *testing.T) {
	t.Parallel()
	w, put, read := newUploads(t)
	put("live", "stays")
	v, err := w.reader.Find(t.Context(), "b", "live", "")
	if err != nil {
		t.Fatal(err)
	}
	w.discard(t.Context(), v.Blobs[0])
	w.forget(t.Context(), v.Blobs[0])
	if got := read("live"); got != "stays<nil>" {
		t.Errorf("it reads %q", got)
	}
	nobodys := blob.NewID()
	if err := w.store.Put(t.Context(), nobodys, strings.NewReader("x"), 1); err != nil {
		t.Fatal(err)
	}
	w.discard(t.Context(), nobodys)
	if _, err := w.store.Size(t.Context(), nobodys); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("bytes without a row: %v", err)
	}
}
