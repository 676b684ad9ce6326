//go:build unix

package maintenance //nolint:testpackage // when it looks again shows only inside

import (
	"context"
	"errors"
	"io"
	"iter"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/internal/testenv"
)

// uploads are a keeper, and a writer that asks it for the owner of the store.
type uploads struct {
	*testing.T

	keeper *Keeper
	store  blob.Store
	admin  *pgxpool.Pool
	reader *objects.Reader
	writer *objects.Writer
}

func newUploads(t *testing.T) *uploads {
	t.Helper()
	pg := testenv.Postgres(t)
	store, err := blob.OpenDir(t.TempDir())
	if err == nil {
		_, err = pg.Pool(t).Exec(t.Context(), "SELECT objects.create_bucket('b', 0, 'lease'); SELECT fence.raise('b', 1, sha256('x'), 'me')")
	}
	if err != nil {
		t.Fatal(err)
	}
	log, db := slog.New(slog.DiscardHandler), objects.NewDatabase(testenv.PoolOf(t, pg.GatewayURL), 10*time.Second)
	u := &uploads{T: t, keeper: New(db, store), store: store, admin: pg.Pool(t), reader: objects.NewReader(db, store, log)}
	u.writer = objects.NewWriter(t.Context(), objects.Config{
		DB: db, Store: store, Log: log, Reserve: 128, Owned: u.keeper.Owned, Decided: func(time.Duration) {},
	}, u.reader)
	t.Cleanup(u.writer.Close)
	return u
}

// lookAgain makes the next upload check the owner of the store.
func (u *uploads) lookAgain() {
	u.keeper.owner.mu.Lock()
	defer u.keeper.owner.mu.Unlock()
	u.keeper.owner.until = time.Time{}
}

// textBody is a body whose digests are not needed.
type textBody struct{ *strings.Reader }

func (b *textBody) ReadWhole(data []byte) error     { _, err := io.ReadFull(b, data); return err }
func (*textBody) Finish(int64) error                { return nil }
func (*textBody) Err() error                        { return nil }
func (*textBody) ETag() string                      { return "e" }
func (*textBody) Checksum() (algorithm, sum string) { return "", "" }

func (u *uploads) tryPut(key, text string) error { return u.attempt(key, text, "") }

// attempt makes one attempt of a request.
func (u *uploads) attempt(key, text, invocation string) error {
	_, err := u.writer.Put(u.Context(), objects.Put{
		Change: objects.Change{Bucket: "b", Key: key, Proof: objects.Proof{Resource: "b", Token: 1}, Invocation: invocation},
		Size:   int64(len(text)), Body: &textBody{strings.NewReader(text)}, Attributes: func() objects.Attributes { return objects.Attributes{} },
	})
	return err
}

func (u *uploads) put(key, text string) {
	u.Helper()
	if err := u.tryPut(key, text); err != nil {
		u.Errorf("%s: %v", key, err)
	}
}

func (u *uploads) wantRead(key, want string) {
	u.Helper()
	v, err := u.reader.Find(u.Context(), "b", key, "")
	if err != nil {
		u.Fatal(err)
	}
	bytes, err := u.reader.Open(u.Context(), v, 0, v.Size)
	if err != nil {
		u.Fatal(err)
	}
	defer func() { _ = bytes.Close() }()
	if got, err := io.ReadAll(bytes); string(got) != want || err != nil {
		u.Errorf("%s reads %q, %v; want %q", key, got, err, want)
	}
}

// The other database takes these blobs for leftovers, and deletes them.
func TestAGatewayWhoseStoreWasTakenAcknowledgesNoMoreUploads(t *testing.T) {
	t.Parallel()
	u := newUploads(t)
	u.put("before", "stays")
	ours, err := u.store.Owner(t.Context())
	if err != nil || ours == "" {
		t.Fatalf("the mark: %q, %v", ours, err)
	}
	// By a claim, or by a database that had checked before there was a mark.
	if err := u.store.SetOwner(t.Context(), "another database"); err != nil {
		t.Fatal(err)
	}
	u.lookAgain()
	for _, text := range []string{"small", strings.Repeat("large", 64<<10)} {
		var foreign *StoreOwnerError
		if err := u.tryPut("k", text); !errors.As(err, &foreign) {
			t.Errorf("%d bytes: got %v", len(text), err)
		}
	}
	u.wantRead("before", "stays")
	if err := u.store.SetOwner(t.Context(), ours); err != nil {
		t.Fatal(err)
	}
	u.lookAgain()
	u.put("after", "welcome again")
}

// unmarked is a store whose mark cannot be read.
type unmarked struct{ blob.Reserver }

func (unmarked) Owner(context.Context) (string, error) { return "", errors.New("too slow") }

func TestAMarkThatCannotBeReadAgainEndsNoUploads(t *testing.T) {
	t.Parallel()
	u := newUploads(t)
	u.put("before", "stays")
	u.keeper.store = unmarked{u.store.(blob.Reserver)}
	u.lookAgain()
	u.put("after", "goes on")
	u.wantRead("after", "goes on")
}

// before looks like the store before its first upload, for the first look.
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
	u := newUploads(t)
	u.put("first", "of the other gateway")
	if err := New(u.keeper.db, &before{Store: u.store}).Claim(t.Context(), false); err != nil {
		t.Error(err)
	}
	empty, err := blob.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := New(u.keeper.db, empty).Claim(t.Context(), false); err == nil {
		t.Error("an empty folder was taken for this database's")
	}
}

// probing is a store that calls a function before its first blob is deleted.
type probing struct {
	blob.Store

	onDelete func()
}

func (s *probing) Delete(ctx context.Context, id blob.ID) error {
	s.onDelete()
	return s.Store.Delete(ctx, id)
}

// Two gateways start on an empty store: one checks while the other's probe exists.
func TestAProbeIsNotTakenForAnothersBlob(t *testing.T) {
	t.Parallel()
	u := newUploads(t)
	var looked int
	store := &probing{Store: u.store, onDelete: func() {
		looked++
		if err := New(u.keeper.db, u.store).Check(t.Context()); err != nil {
			t.Error(err)
		}
	}}
	if err := New(u.keeper.db, store).Check(t.Context()); err != nil {
		t.Error(err)
	}
	if looked == 0 {
		t.Error("nobody looked")
	}
}

// An upload was committed, its answer was lost, and the lease passed on before the client's next attempt.
func TestASecondAttemptOfWhatWasDoneIsToldSo(t *testing.T) {
	t.Parallel()
	u := newUploads(t)
	large := strings.Repeat("large", 64<<10)
	if err := u.attempt("k", large, "request"); err != nil {
		t.Fatal(err)
	}
	if _, err := u.admin.Exec(t.Context(), "SELECT fence.raise('b', 2, sha256('y'), 'the next holder')"); err != nil {
		t.Fatal(err)
	}
	if err := u.attempt("k", large, "request"); err != nil {
		t.Errorf("the same request: %v", err)
	}
	if err := u.attempt("k", large, "another request"); err == nil {
		t.Error("a stale request was done")
	}
	u.wantRead("k", large)
}
