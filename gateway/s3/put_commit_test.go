//go:build unix

package s3_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/internal/testenv"
)

// A write does not lock its bucket's row: two such locks at a time create a multixact.
func TestUploadsMakeNoMultixact(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	var wg sync.WaitGroup
	for client := range 16 {
		wg.Go(func() {
			for n := range 10 {
				if _, err := tryPut(t, holder, bucket, fmt.Sprintf("1001/%d", (client+n)%5), "data"); err != nil {
					t.Errorf("put: %v", err)
				}
			}
			if _, err := tryPut(t, holder, bucket, fmt.Sprintf("1001/%d", client), strings.Repeat("x", 1<<17)); err != nil {
				t.Errorf("put: %v", err)
			}
		})
	}
	wg.Wait()
	if n := w.count("SELECT count(*) FROM objects.buckets WHERE xmax <> '0'"); n != 0 {
		t.Error("the bucket's row was locked")
	}
}

// A part does not lock its upload's row. The end of an upload waits for parts in progress; later ones are refused.
func TestPartsMakeNoMultixact(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	m := begin(t, w.lease("orders/1001", 5), bucket, "")
	var wg sync.WaitGroup
	for n := range 32 {
		wg.Go(func() {
			if _, err := m.tryPart(m.c, int32(n%8+1), []byte("data")); err != nil {
				t.Errorf("part: %v", err)
			}
		})
	}
	wg.Wait()
	if n := w.count("SELECT count(*) FROM objects.uploads WHERE xmax <> '0'"); n != 0 {
		t.Error("the upload's row was locked")
	}
	tx, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "LOCK TABLE objects.parts IN SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	const waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database() AND query LIKE $1"
	part := w.async(w.of("PUT", invoice+"?partNumber=9&uploadId="+*m.id, "part", nil))
	testenv.Eventually(t, "the part is under way", func() bool { return w.count(waiting, "%put_part(%") == 1 })
	abort := w.of("DELETE", invoice+"?uploadId="+*m.id, "", nil)
	abort.invocation = "another request"
	aborted := w.async(abort)
	testenv.Eventually(t, "the end waits", func() bool { return w.count(waiting, "%abort_multipart(%") == 1 })
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := <-part; a.status != 200 {
		t.Errorf("the part: %+v", a)
	}
	if a := <-aborted; a.status != 204 {
		t.Errorf("the end: %+v", a)
	}
	if n := w.count("SELECT count(*) FROM objects.parts"); n != 0 {
		t.Errorf("%d parts are left", n)
	}
}

// A change of the rules waits for the writes in progress, and takes what they did into account.
func TestARuleWaitsForTheWritesUnderWay(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	w.arm("orders/1001", 5)
	tx, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "LOCK TABLE objects.pointers IN SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	const waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database() AND query LIKE $1"
	put := w.async(w.putRaw(5, "", "data"))
	testenv.Eventually(t, "the write is under way", func() bool { return w.count(waiting, "%commit_put(%") == 1 })
	changed := make(chan error, 1)
	go func() {
		_, err := w.srv.Catalog().EnsureBucket(t.Context(), bucket, objects.KeyRule())
		changed <- err
	}()
	testenv.Eventually(t, "the change waits", func() bool { return w.count(waiting, "%ensure_bucket%") == 1 })
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := <-put; a.status != 200 {
		t.Errorf("the write: %+v", a)
	}
	if err := <-changed; err == nil {
		t.Error("the rule was changed under an object that was written under another one")
	}
}

// Any login may take any advisory lock; holding that of a bucket must not delay writes.
func TestAStrangersLockHoldsUpNoWrite(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	tx, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "SELECT pg_advisory_xact_lock(hashtextextended('orders', 1))"); err != nil {
		t.Fatal(err)
	}
	put(t, holder, bucket, invoice, "data")
	if got := get(t, holder, bucket, invoice); got != "data" {
		t.Errorf("the object holds %q", got)
	}
}

// Uploads in one group are decided independently: one that is refused or has to wait does not affect the others.
func TestUploadsThatGoTogetherAreJudgedEachForItself(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	current, stale := w.lease("orders/1001", 5), w.lease("orders/1002", 5)
	w.arm("orders/1002", 6)
	put(t, current, bucket, "1001/held", "old")
	tx, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), "SELECT FROM objects.pointers WHERE key = '1001/held' FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	held := w.async(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/1001/held", body: body("new"), size: 3})
	var wg sync.WaitGroup
	began := time.Now()
	for client := range 16 {
		wg.Go(func() {
			for n := range 10 {
				key := fmt.Sprintf("1001/%d", (client+n)%7)
				if _, err := tryPut(t, current, bucket, key, key); err != nil {
					t.Errorf("put %s: %v", key, err)
				}
				if _, err := tryPut(t, stale, bucket, "1002/x", "x"); err == nil || !strings.Contains(err.Error(), "StaleFencingToken") {
					t.Errorf("a stale one: %v", err)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("320 uploads took %v", time.Since(began))
	if len(held) != 0 {
		t.Error("the held one was answered")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := <-held; a.status != 200 {
		t.Errorf("the held one: %+v", a)
	}
	for n := range 7 {
		if key := fmt.Sprintf("1001/%d", n); get(t, current, bucket, key) != key {
			t.Errorf("%s holds something else", key)
		}
	}
	if n := w.count("SELECT count(*) FROM objects.versions v JOIN objects.pointers p ON p.version = v.id WHERE p.modified_at = v.created_at"); n != 8 {
		t.Errorf("%d current versions", n)
	}
	if n := w.count("SELECT count(*) FROM objects.versions"); n != 162 {
		t.Errorf("%d versions, want one for each upload", n)
	}
}

const commitPut = `SELECT version::text FROM objects.commit_put(gen_random_uuid(), 'orders', '1001/x', $1::text::uuid, 1, 'e', '{}', $2, $3, $4, $5, NULL, false)`

type row interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// announced announces a blob.
func (w *world) announced() string {
	w.t.Helper()
	id := blob.NewID().String()
	w.exec("SELECT objects.reserve_blobs(ARRAY['" + id + "'::uuid])")
	return id
}

func (w *world) stateOf(id string) (state string) {
	w.t.Helper()
	if err := w.admin.QueryRow(w.t.Context(), "SELECT state FROM objects.blobs WHERE id = $1::text::uuid", id).Scan(&state); err != nil {
		w.t.Fatal(err)
	}
	return state
}

func TestTheCommonCommitTakesTheCurrentGrantOnly(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	w.arm("orders/1002", 7)
	old := sha256.Sum256([]byte("seal of 5"))
	w.arm("orders/1001", 6)
	current := sha256.Sum256([]byte("seal of 6"))
	other := sha256.Sum256([]byte("another seal"))
	for name, c := range map[string]struct {
		resource string
		token    int
		seal     []byte
		state    string // SQLSTATE; "": accepted
	}{
		"current, authenticated by the gateway": {"orders/1001", 6, nil, ""},
		"current, with its seal":                {"orders/1001", 6, current[:], ""},
		"current, by its seal alone":            {"orders/1001", 0, current[:], ""},
		"superseded":                            {"orders/1001", 5, nil, "ZF001"},
		"superseded, with its seal":             {"orders/1001", 5, old[:], "ZF001"},
		"superseded, by its seal alone":         {"orders/1001", 0, old[:], "ZF001"},
		"with another seal":                     {"orders/1001", 6, other[:], "ZF003"},
		"never issued":                          {"orders/1001", 9, nil, "ZF003"},
		"no token, authenticated by nobody":     {"orders/1001", 0, nil, "ZF003"},
		"without a seal where one is needed":    {"orders/1001", 6, []byte{}, "ZF003"},
		"of another resource":                   {"orders/1002", 7, nil, "ZF004"},
		"of none":                               {"", 0, nil, "ZF002"},
	} {
		id := w.announced()
		var version string
		err := w.admin.QueryRow(t.Context(), commitPut, id, c.resource, c.token, c.seal, nil).Scan(&version)
		pgErr, _ := errors.AsType[*pgconn.PgError](err)
		switch {
		case c.state == "" && (err != nil || w.stateOf(id) != "live"):
			t.Errorf("%s: %v, and its blob is %s", name, err, w.stateOf(id))
		case c.state != "" && (pgErr == nil || pgErr.Code != c.state || w.stateOf(id) != "pending"):
			t.Errorf("%s: got %v, want %s; its blob is %s", name, err, c.state, w.stateOf(id))
		}
	}
	w.liveOnceIgnoringBytes()
}

// liveOnceIgnoringBytes checks that exactly one blob is live, that of the current version.
func (w *world) liveOnceIgnoringBytes() {
	w.t.Helper()
	if n := w.count(`SELECT count(*) FROM objects.blobs b LEFT JOIN objects.pointers p ON p.version = b.version WHERE b.state = 'live' AND p.version IS NULL`); n != 0 {
		w.t.Errorf("%d blobs are live that no current version lists", n)
	}
	if n := w.count("SELECT count(*) FROM objects.blobs WHERE state = 'live'"); n != 1 {
		w.t.Errorf("%d blobs are live, want 1", n)
	}
}

// Two attempts of one request meet in the INSERT: the second one returns the first one's version, and its own bytes are
// discarded.
func TestTwoAttemptsAtOnceAreOneCommit(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	first, second := w.announced(), w.announced()
	tx, err := w.admin.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	attempt := func(q row, id string) (version string, err error) {
		return version, q.QueryRow(t.Context(), commitPut, id, "orders/1001", 5, nil, "the same").Scan(&version)
	}
	want, err := attempt(tx, first)
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		version string
		err     error
	}
	done := make(chan result, 1)
	go func() {
		version, err := attempt(w.admin, second)
		done <- result{version, err}
	}()
	testenv.Eventually(t, "the second attempt waits", func() bool {
		return w.count("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%commit_put%' AND datname = current_database()") == 1
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got.err != nil || got.version != want {
		t.Errorf("the second attempt: %s, %v; want %s", got.version, got.err, want)
	}
	if a, b := w.stateOf(first), w.stateOf(second); a != "live" || b != "condemned" {
		t.Errorf("the first attempt's blob is %s, the second one's %s", a, b)
	}
}

// A restored version shares its blob with its source. If it is overwritten where nothing is kept any more, the source
// still has its bytes.
func TestOverwritingARestoredVersionLeavesItsSourceAlone(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.keeping(objects.Keep{All: true})
	holder := w.lease("orders/1001", 5)
	one := put(t, holder, bucket, invoice, "one").VersionId
	put(t, holder, bucket, invoice, "two")
	if _, err := restore(t, holder, bucket, invoice, *one); err != nil {
		t.Fatal(err)
	}
	if err := w.srv.Catalog().SetKeep(t.Context(), bucket, objects.Keep{}); err != nil {
		t.Fatal(err)
	}
	put(t, holder, bucket, invoice, "three")
	if n := w.count("SELECT count(*) FROM objects.blobs b JOIN objects.versions v ON b.id = ANY (v.blobs) WHERE b.state = 'superseded' AND v.kept_order IS NOT NULL"); n != 0 {
		t.Errorf("%d blobs of kept versions are superseded", n)
	}
	if got := get(t, holder, bucket, invoice); got != "three" {
		t.Errorf("the object holds %q", got)
	}
}

func TestTheCommonCommitTakesPendingBlobsOnly(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	for _, state := range []string{"condemned", "superseded", "live", "forgotten"} {
		id := w.announced()
		w.exec("UPDATE objects.blobs SET state = '" + state + "' WHERE '" + state + "' <> 'forgotten' AND id = '" + id + "'")
		if state == "forgotten" {
			w.exec("DELETE FROM objects.blobs WHERE id = '" + id + "'")
		}
		var version string
		err := w.admin.QueryRow(t.Context(), commitPut, id, "orders/1001", 5, nil, nil).Scan(&version)
		if pgErr, _ := errors.AsType[*pgconn.PgError](err); pgErr == nil || pgErr.Code != "ZO004" {
			t.Errorf("%s: got %v", state, err)
		}
		if state != "forgotten" && w.stateOf(id) != state {
			t.Errorf("%s: now %s", state, w.stateOf(id))
		}
	}
	if n := w.count("SELECT count(*) FROM objects.versions") + w.count("SELECT count(*) FROM objects.pointers"); n != 0 {
		t.Errorf("%d rows of refused uploads", n)
	}
}

// Arming drains: a commit that has passed the check and is in progress ends before the next holder's acquisition does.
func TestArmingEndsACommitThatIsUnderWay(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	id := w.announced()
	tx, err := poolOf(t, w.pg.GatewayURL).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	var version string
	if err := tx.QueryRow(t.Context(), commitPut, id, "orders/1001", 5, nil, nil).Scan(&version); err != nil {
		t.Fatal(err)
	}
	w.arm("orders/1001", 6)
	if err := tx.Commit(t.Context()); err == nil || w.stateOf(id) != "pending" {
		t.Errorf("committed after the next holder had acquired: %v, the blob is %s", err, w.stateOf(id))
	}
}

func TestTheRuleStaysWhileACommitIsUnderWay(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bucket()
	w.arm("orders/1001", 5)
	id := w.announced()
	err := pgx.BeginFunc(t.Context(), w.admin, func(tx pgx.Tx) error {
		var version string
		if err := tx.QueryRow(t.Context(), commitPut, id, "orders/1001", 5, nil, nil).Scan(&version); err != nil {
			return err
		}
		err := pgx.BeginFunc(t.Context(), w.admin, func(other pgx.Tx) error {
			_, err := other.Exec(t.Context(), "SET LOCAL lock_timeout = '100ms'")
			if err == nil {
				_, err = other.Exec(t.Context(), "SELECT objects.ensure_bucket('orders', 0)")
			}
			return err
		})
		if pgErr, _ := errors.AsType[*pgconn.PgError](err); pgErr == nil || pgErr.Code != "55P03" {
			t.Errorf("changing the rule: got %v, want that it waits", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
