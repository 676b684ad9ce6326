//go:build unix

package s3_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/jackc/pgx/v5"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
	"github.com/fencegate/fencegate/internal/testenv"
)

// If a crash reverted an acknowledged change, a live object's bytes could be deleted.
func TestEveryChangeIsDurableWhateverTheSessionChose(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	id, part, upload := blob.NewID().String(), blob.NewID().String(), blob.NewID().String()
	whole, second, ahead := blob.NewID().String(), blob.NewID().String(), blob.NewID().String()
	for _, sql := range []string{
		"SELECT objects.begin_multipart('" + second + "', 'orders', '1001/y', '{}', 'orders/1001', 5, NULL, NULL)",
		"SELECT objects.begin_upload('" + whole + "', 'orders', '1001/y', 'orders/1001', 5, NULL)",
		"SELECT objects.create_bucket('outside', 0, 'monotone')",
		"SELECT objects.begin_upload('" + blob.NewID().String() + "', 'outside', 'x', 'outside', 7, '')",
		"SELECT objects.create_bucket('other', 0)",
		"SELECT objects.ensure_bucket('other', 1)",
		"SELECT objects.delete_bucket('other')",
		"SELECT objects.begin_upload('" + id + "', 'orders', '1001/x', 'orders/1001', 5, NULL)",
		"SELECT objects.commit_upload('" + blob.NewID().String() + "', 'orders', '1001/x', ARRAY['" + id + "'::uuid], '{1}', 'e', '{}', 'orders/1001', 5, NULL, NULL, NULL, false)",
		"SELECT objects.reserve_blobs(ARRAY['" + ahead + "'::uuid, '" + blob.NewID().String() + "'])",
		"SELECT objects.commit_put('" + blob.NewID().String() + "', 'orders', '1001/x', '" + ahead + "', 1, 'e', '{}', 'orders/1001', 5, NULL, NULL, NULL, false)",
		"SELECT objects.return_blobs(ARRAY['" + ahead + "'::uuid])",
		"SELECT objects.commit_deletion('" + blob.NewID().String() + "', 'orders', '1001/x', 'orders/1001', 5, NULL, NULL, NULL)",
		"SELECT objects.abandon_upload('" + id + "')",
		"SELECT objects.begin_multipart('" + upload + "', 'orders', '1001/x', '{}', 'orders/1001', 5, NULL, NULL)",
		"SELECT objects.begin_upload('" + part + "', 'orders', '1001/x', 'orders/1001', 5, NULL)",
		"SELECT objects.put_part('" + upload + "', 'orders', '1001/x', 1, '" + part + "', 1, 'e', '', '', 'orders/1001', 5, NULL, NULL)",
		"SELECT objects.abort_multipart('" + upload + "', 'orders', '1001/x', 'orders/1001', 5, NULL, NULL)",
		"SELECT objects.complete_multipart('" + second + "', 'orders', '1001/y', ARRAY['" + whole + "'::uuid], '{1}', 'e', '{}', 'orders/1001', 5, NULL, NULL, NULL, false)",
		"SELECT objects.restore_version('" + blob.NewID().String() + "', 'orders', '1001/y', '" + second + "', 'orders/1001', 5, NULL, NULL, NULL, false)",
		"SELECT objects.put_tags('" + blob.NewID().String() + "', 'orders', '1001/y', NULL, '{}', 'orders/1001', 5, NULL, NULL)",
		"SELECT objects.remove_version('orders', '1001/y', '" + second + "', 'orders/1001', 5, NULL)",
		"SELECT objects.set_keep('orders', 3, NULL)",
		"SELECT objects.set_prefix_rule('orders', 'elsewhere/', 0, 'lease')",
		"SELECT objects.prune_versions('', NULL, 10, false)",
		"SELECT objects.forget_deletions('1 day', 10, false)",
		"SELECT objects.adopt(ARRAY['" + blob.NewID().String() + "'::uuid], false)",
		"SELECT objects.condemn('1 day', '1 day', 10, false, false)",
		"SELECT objects.swept('{}', '{}', '1 day')",
	} {
		for _, chosen := range []string{"remote_apply", "local", "off"} {
			want := map[bool]string{true: "remote_apply", false: "on"}[chosen == "remote_apply"]
			if strings.Contains(sql, "begin_upload") && !strings.Contains(sql, "'outside'") {
				want = "off" // an announcement need not be durable, unless its token raised the fence
			}
			func() {
				tx, err := w.admin.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				rollback := chosen != "off"
				defer func() {
					if rollback {
						_ = tx.Rollback(context.WithoutCancel(t.Context()))
					} else if err := tx.Commit(t.Context()); err != nil {
						t.Error(err)
					}
				}()
				var got string
				_, err = tx.Exec(t.Context(), "SELECT set_config('synchronous_commit', $1, true)", chosen)
				if err == nil {
					_, err = tx.Exec(t.Context(), sql)
				}
				if err == nil {
					err = tx.QueryRow(t.Context(), "SELECT current_setting('synchronous_commit')").Scan(&got)
				}
				if err != nil {
					t.Fatalf("%s: %v", sql, err)
				}
				if got != want {
					t.Errorf("%s: with %s chosen, the commit is %s", sql, chosen, got)
				}
			}()
		}
	}
}

// A snapshot from before the wait for a lock would not show what the lock's holder did.
func TestNothingIsChangedOnAnOldSnapshot(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	for _, sql := range []string{
		"SELECT objects.begin_upload(gen_random_uuid(), 'orders', '1001/x', 'orders/1001', 5, NULL)",
		"SELECT objects.commit_deletion(gen_random_uuid(), 'orders', '1001/x', 'orders/1001', 5, NULL, NULL, NULL)",
		"SELECT objects.reserve_blobs('{}')", "SELECT objects.return_blobs('{}')",
		"SELECT objects.commit_put(gen_random_uuid(), 'orders', '1001/x', gen_random_uuid(), 1, 'e', '{}', 'orders/1001', 5, NULL, NULL, NULL, false)",
		"SELECT objects.delete_bucket('orders')", "SELECT objects.condemn('1 day', '1 day', 10, false, false)", "SELECT objects.ensure_bucket('orders', 0)",
		"SELECT objects.prune_versions('', NULL, 10, false)", "SELECT objects.adopt('{}', false)", "SELECT objects.forget_deletions('1 day', 10, false)",
		"SELECT objects.restore_version(gen_random_uuid(), 'orders', '1001/x', gen_random_uuid(), 'orders/1001', 5, NULL, NULL, NULL, false)",
		"SELECT objects.remove_version('orders', '1001/x', gen_random_uuid(), 'orders/1001', 5, NULL)", "SELECT objects.set_keep('orders', 3, NULL)",
	} {
		err := pgx.BeginTxFunc(t.Context(), w.admin, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), sql)
			return err
		})
		if err == nil {
			t.Errorf("%s: went through at REPEATABLE READ", sql)
		}
	}
}

// liveBlobsAreCurrent checks the invariant that a blob is live exactly while a
// current version lists it.
func (w *world) liveBlobsAreCurrent() {
	w.t.Helper()
	const current = `SELECT unnest(v.blobs) AS id FROM objects.pointers p JOIN objects.versions v ON v.id = p.version`
	for what, sql := range map[string]string{
		"live blobs that no current version lists":      "SELECT count(*) FROM objects.blobs WHERE state = 'live' AND id NOT IN (" + current + ")",
		"blobs of current versions that are not live":   "SELECT count(*) FROM (" + current + ") c LEFT JOIN objects.blobs b USING (id) WHERE b.state IS DISTINCT FROM 'live'",
		"parts whose blobs are neither pending nor new": "SELECT count(*) FROM objects.parts p LEFT JOIN objects.blobs b ON b.id = p.blob WHERE b.state IS DISTINCT FROM 'pending'",
	} {
		if n := w.count(sql); n != 0 {
			w.t.Errorf("%d %s", n, what)
		}
	}
}

// paused makes deletions wait between the look-up of the pointer and its removal.
const paused = `ALTER FUNCTION objects.lock_pointer RENAME TO lock_pointer_at_once;
CREATE FUNCTION objects.lock_pointer(b text, k text, m text, n boolean) RETURNS objects.pointers LANGUAGE plpgsql AS $$
DECLARE r objects.pointers;
BEGIN
  r := objects.lock_pointer_at_once(b, k, m, n);
  IF current_setting('test.pause', true) = 'on' THEN PERFORM pg_advisory_xact_lock(4711); END IF;
  RETURN r;
END $$`

func TestADeletionSupersedesWhatItRemoves(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	if _, err := w.admin.Exec(t.Context(), paused); err != nil {
		t.Fatal(err)
	}
	gate, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = gate.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := gate.Exec(t.Context(), "SELECT pg_advisory_xact_lock(4711)"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- pgx.BeginFunc(t.Context(), w.admin, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), "SET LOCAL test.pause = 'on'")
			if err == nil {
				_, err = tx.Exec(t.Context(), "SELECT objects.commit_deletion(gen_random_uuid(), $1, $2, 'orders/1001', 5, NULL, NULL, NULL)", bucket, invoice)
			}
			return err
		})
	}()
	testenv.Eventually(t, "the deletion waits", func() bool {
		return w.count("SELECT count(*) FROM pg_locks WHERE NOT granted AND objid = 4711 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())") == 1
	})
	put(t, holder, bucket, invoice, "in between")
	if err := gate.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	w.liveBlobsAreCurrent()
	if n := w.count("SELECT count(*) FROM objects.blobs WHERE state = 'superseded'"); n != 1 {
		t.Errorf("%d blobs are superseded, want 1", n)
	}
}

// Of two attempts of one deletion the second waits for the first's outcome. It must not report the writer as stale if
// the first took effect.
func TestTheTriesOfADeletionGoOneByOne(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	put(t, w.lease("orders/1001", 5), bucket, invoice, "data")
	const sql = "SELECT objects.commit_deletion($1, $2, $3, 'orders/1001', 5, NULL, NULL, NULL)"
	id := blob.NewID().String()
	first, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := first.Exec(t.Context(), sql, id, bucket, invoice); err != nil {
		t.Fatal(err)
	}
	if _, err := w.admin.Exec(t.Context(), "SELECT fence.raise('orders/1001', 6, sha256('x'), 'test')"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := w.admin.Exec(t.Context(), sql, id, bucket, invoice)
		done <- err
	}()
	testenv.Eventually(t, "the second try waits, or is over", func() bool {
		return len(done) == 1 || w.count("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()") == 1
	})
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the second try: %v", err)
	}
	w.liveBlobsAreCurrent()
}

var errStuck = errors.New("input/output error")

// stuck is a store that cannot delete one blob.
type stuck struct {
	folder

	id blob.ID
}

func (s *stuck) Delete(ctx context.Context, id blob.ID) error {
	if id == s.id {
		return errStuck
	}
	return s.folder.Delete(ctx, id)
}

func TestABlobThatCannotBeDeletedStopsNoSweep(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	for _, data := range []string{"one", "two", "three", "four"} {
		put(t, holder, bucket, invoice, data)
	}
	w.age("25 hours")
	bad := &stuck{folder: w.store.Store.(folder)}
	if err := w.admin.QueryRow(t.Context(), "SELECT id FROM objects.blobs WHERE state = 'superseded' ORDER BY changed_at LIMIT 1").Scan(&bad.id); err != nil {
		t.Fatal(err)
	}
	w.store.Store = bad
	for _, want := range []maintenance.Swept{{Condemned: 3, Deleted: 2}, {}} {
		got, err := w.srv.Keeper().Sweep(t.Context(), maintenance.Sweep{})
		if got != want || !errors.Is(err, errStuck) {
			t.Errorf("swept %+v, %v; want %+v and the store's error", got, err, want)
		}
	}
	w.store.Store = bad.folder
	w.sweep(maintenance.Swept{Deleted: 1}, maintenance.Sweep{})
	w.liveBlobsAreCurrent()
}

// slowStore is a store whose first write waits, either before it looks for the place or with the place open.
type slowStore struct {
	folder

	inside     bool
	once       sync.Once
	in, resume chan struct{}
}

func (h *slowStore) wait() {
	h.once.Do(func() {
		close(h.in)
		<-h.resume
	})
}

func (h *slowStore) Put(ctx context.Context, id blob.ID, r io.Reader, size int64) error {
	h.wait()
	return h.folder.Put(ctx, id, r, size)
}

func (h *slowStore) Fill(ctx context.Context, id blob.ID, r io.Reader, size int64) error {
	if !h.inside {
		h.wait()
		return h.folder.Fill(ctx, id, r, size)
	}
	return h.folder.Fill(ctx, id, io.MultiReader(waiting{h}, r), size)
}

// waiting is an empty reader that waits first.
type waiting struct{ h *slowStore }

func (w waiting) Read([]byte) (int, error) {
	w.h.wait()
	return 0, io.EOF
}

func TestBytesThatComeAfterTheirTombstoneIsGoneAreDeleted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		way    option
		inside bool
		status int
		blobs  int
	}{
		"announced":                           {way: announcing, status: 400},
		"reserved, and its place is gone":     {way: byDefault, status: 200, blobs: 1}, // another place is available
		"reserved, and its place is unlinked": {way: byDefault, inside: true, status: 200, blobs: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, c.way)
			w.bucket()
			w.arm("orders/1001", 5)
			h := &slowStore{folder: w.store.Store.(folder), inside: c.inside, in: make(chan struct{}), resume: make(chan struct{})}
			w.store.Store = h
			done := w.async(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice, body: body("hello"), size: 5})
			<-h.in
			for w.rows() > 0 {
				w.age("100 hours")
				if _, err := w.srv.Keeper().Sweep(t.Context(), maintenance.Sweep{}); err != nil {
					t.Fatal(err)
				}
			}
			close(h.resume)
			if a := <-done; a.status != c.status {
				t.Errorf("got %+v", a)
			}
			if c.blobs > 0 {
				testenv.Eventually(t, "the rest of the reserve is given up", func() bool { return len(w.reserve()) == 0 && w.pending() == 0 && w.blobs() == c.blobs })
			}
			if blobs, rows := w.blobs(), w.rows(); blobs != c.blobs || rows != c.blobs {
				t.Errorf("%d blobs and %d rows are left, want %d", blobs, rows, c.blobs)
			}
			w.liveBlobsAreCurrent()
		})
	}
}

func TestDeletingManyStopsWhereTheDatabaseIsLost(t *testing.T) {
	t.Parallel()
	f := &faulty{}
	w := setup(t, throughFaulty(t, f))
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	var objects []types.ObjectIdentifier
	for i := range 20 {
		objects = append(objects, types.ObjectIdentifier{Key: aws.String(fmt.Sprintf("1001/%d", i))})
	}
	f.strike("commit_deletion", true, loseRequest)
	out, err := holder.DeleteObjects(t.Context(), &awss3.DeleteObjectsInput{Bucket: &bucket, Delete: &types.Delete{Objects: objects}})
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range out.Errors {
		// Each attempt takes its time.
		if *e.Code != "ServiceUnavailable" || strings.Contains(*e.Message, "before this key's turn came") != (i > 0) {
			t.Errorf("%s: %s %s", *e.Key, *e.Code, *e.Message)
		}
	}
	if len(out.Deleted)+len(out.Errors) != len(objects) || len(out.Deleted) != 0 {
		t.Errorf("%d deleted, %d failed", len(out.Deleted), len(out.Errors))
	}
}
