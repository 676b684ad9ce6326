//go:build unix

package s3_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

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
