//go:build unix

package s3 //nolint:testpackage // a reserve's age shows only inside

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/versity/versitygw/s3response"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/s3/credentials"
	"github.com/fencegate/fencegate/internal/testenv"
)

func TestAReserveThatGrewOldIsNotHandedOut(t *testing.T) {
	t.Parallel()
	b, _, _ := newUploads(t)
	r := b.reserve
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
		_, err := b.cfg.Store.Size(t.Context(), one.id)
		if stays := err == nil; stays != (i == 2) {
			t.Errorf("the place of blob %d: %v", i, err)
		}
	}
}

// newUploads is a backend with a bucket that one lease may write to, and how it puts
// and reads.
func newUploads(t *testing.T) (b *backend, put func(key, text string), read func(key string) string) {
	t.Helper()
	pg := testenv.Postgres(t)
	pool, err := pgxpool.New(t.Context(), pg.GatewayURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	store, err := blob.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := configOf(Deps{Pool: pool, Store: store, Keys: &credentials.Keyring{}}, Options{RootAccessKey: "root", RootSecretKey: "secret"})
	if err == nil {
		b, err = newBackend(t.Context(), cfg)
	}
	if err == nil {
		_, err = pg.Pool(t).Exec(t.Context(), "SELECT objects.create_bucket('b', 0, 'lease'); SELECT fence.raise('b', 1, sha256('x'), 'me')")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.reserve.close)
	put = func(key, text string) {
		t.Helper()
		size := int64(len(text))
		body, err := newBody(s3response.PutObjectInput{Body: strings.NewReader(text), ContentLength: &size})
		if err == nil {
			_, err = b.upload(request{grant: proof{resource: "b", token: 1}}, target{bucket: "b", key: key, size: size}, body, func() attributes { return attributes{} })
		}
		if err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	return b, put, func(key string) string {
		v, err := b.find("b", key, "")
		if err != nil {
			return err.Error()
		}
		r, err := b.read(v, 0, v.Size)
		if err != nil {
			return err.Error()
		}
		defer func() { _ = r.Close() }()
		all, err := io.ReadAll(r)
		return fmt.Sprint(string(all), err)
	}
}

// set makes the reserve hold these blobs, and nothing fill it.
func (r *reserve) set(free []reserved) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free, r.resume = slices.Clone(free), time.Now().Add(time.Hour)
}

// A machine may go on from a snapshot that was taken while it ran: then two
// processes hold the same reserve, or one holds what it has used already.
func TestACopyOfTheProcessDeletesNothing(t *testing.T) {
	t.Parallel()
	b, put, read := newUploads(t)
	b.reserve.fill(2)
	ids := slices.Clone(b.reserve.free)
	b.reserve.set(ids)
	put("k1", "acknowledged")
	b.reserve.set(ids)
	put("k2", "of the copy")
	b.reserve.work.Wait()
	for key, want := range map[string]string{"k1": "acknowledged<nil>", "k2": "of the copy<nil>"} {
		if got := read(key); got != want {
			t.Errorf("%s reads %q, want %q", key, got, want)
		}
	}

	b.reserve.fill(2)
	ids = slices.Clone(b.reserve.free)
	b.reserve.set(ids)
	put("k3", "acknowledged")
	b.reserve.giveBack([]blob.ID{ids[0].id, ids[1].id}) // by the copy
	if got := read("k3"); got != "acknowledged<nil>" {
		t.Errorf("k3 reads %q", got)
	}
	if _, err := b.cfg.Store.Size(t.Context(), ids[1].id); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("the place that nobody used: %v", err)
	}
}

// Whoever has an id of somebody else's, and fails with it, leaves the bytes alone.
func TestOnlyBytesThatNothingNamesAreForgotten(t *testing.T) {
	t.Parallel()
	b, put, read := newUploads(t)
	put("live", "stays")
	v, err := b.find("b", "live", "")
	if err != nil {
		t.Fatal(err)
	}
	b.discard(v.Blobs[0])
	b.forget(v.Blobs[0])
	if got := read("live"); got != "stays<nil>" {
		t.Errorf("it reads %q", got)
	}
	nobodys := blob.NewID()
	if err := b.cfg.Store.Put(t.Context(), nobodys, strings.NewReader("x"), 1); err != nil {
		t.Fatal(err)
	}
	b.discard(nobodys)
	if _, err := b.cfg.Store.Size(t.Context(), nobodys); !errors.Is(err, blob.ErrNotFound) {
		t.Errorf("bytes without a row: %v", err)
	}
}

// before shows a store as it was before its first upload, to those who look once.
type before struct {
	blob.Store

	looked bool
}

func (s *before) Owner(ctx context.Context) (string, error) {
	if !s.looked {
		return "", nil
	}
	return s.Store.Owner(ctx)
}

func (s *before) All(context.Context) iter.Seq2[blob.Info, error] {
	s.looked = true
	return func(func(blob.Info, error) bool) {}
}

// Two gateways start on an empty store: one has written before the other asks
// PostgreSQL.
func TestAStoreThatIsMarkedMeanwhileIsOurs(t *testing.T) {
	t.Parallel()
	b, put, _ := newUploads(t)
	put("first", "of the other gateway")
	if err := (&Catalog{db: b.db}).Claim(t.Context(), &before{Store: b.cfg.Store}, false); err != nil {
		t.Error(err)
	}
	empty, err := blob.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := (&Catalog{db: b.db}).Claim(t.Context(), empty, false); err == nil {
		t.Error("an empty folder was taken for this database's")
	}
}
