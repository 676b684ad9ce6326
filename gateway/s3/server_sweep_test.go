//go:build unix

package s3_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencegate/fencegate/gateway/blob"
	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/testenv"
)

// age makes every blob and upload look older, except for the reserve, which a server returns long before.
func (w *world) age(by string) {
	w.t.Helper()
	reserve := w.reserve()
	for _, sql := range []string{
		"UPDATE objects.blobs SET changed_at = changed_at - $1::text::interval, swept_at = swept_at - $1::text::interval WHERE id <> ALL ($2::text[]::uuid[])",
		"UPDATE objects.uploads SET created_at = created_at - $1::text::interval", "UPDATE objects.parts SET changed_at = changed_at - $1::text::interval",
	} {
		if _, err := w.admin.Exec(w.t.Context(), sql, []any{by, reserve}[:strings.Count(sql, "$2")+1]...); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) sweep(want maintenance.Swept, o maintenance.Sweep) {
	w.t.Helper()
	got, err := w.srv.Keeper().Sweep(w.t.Context(), o)
	if err != nil || got != want {
		w.t.Errorf("swept %+v, %v; want %+v", got, err, want)
	}
}

func TestTheSweepTakesWhatNobodyPointsAtAndNothingElse(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	put(t, holder, bucket, invoice, "old")
	put(t, holder, bucket, invoice, "new")
	m := begin(t, holder, bucket, "")
	m.part(1, []byte("part"))
	w.sweep(maintenance.Swept{}, maintenance.Sweep{}) // all too young
	w.age("25 hours")
	young := begin(t, holder, bucket, "")
	young.part(1, []byte("young"))
	w.sweep(maintenance.Swept{Condemned: 2}, maintenance.Sweep{DryRun: true}) // the old version, and the old upload's part
	w.sweep(maintenance.Swept{Condemned: 2, Deleted: 2}, maintenance.Sweep{})
	if got := get(t, holder, bucket, invoice); got != "new" {
		t.Errorf("the object holds %q", got)
	}
	_, err := m.complete(holder, m.parts)
	wantRefused(t, err, 404, "NoSuchUpload")
	if _, err := young.complete(holder, young.parts); err != nil {
		t.Error(err)
	}
	if got := get(t, holder, bucket, invoice); got != "young" {
		t.Errorf("the object holds %q", got)
	}
}

func TestAnUploadThatTheSweepCondemnedIsRefusedAtItsCommit(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	put(t, w.lease("orders/1001", 5), bucket, invoice, "before")
	slow := newHalf(3 << 20)
	done := w.async(raw{creds: w.issue("orders/1001", 5), method: "PUT", path: "/orders/" + invoice, body: slow, size: 3 << 20})
	w.underWay(slow)
	w.age("25 hours")
	w.sweep(maintenance.Swept{Condemned: 1, Deleted: 1}, maintenance.Sweep{})
	close(slow.resume)
	// The upload was discarded, or the store no longer found the file that the sweep deleted.
	if a := <-done; a.status != 400 && a.status != 503 {
		t.Errorf("got %+v", a)
	}
	if got := get(t, w.root(), bucket, invoice); got != "before" {
		t.Errorf("the object holds %d bytes", len(got))
	}
}

func TestTheSweepGoesOnAfterACrashAndDeletesTwice(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	for _, data := range []string{"one", "two", "three"} {
		put(t, holder, bucket, invoice, data)
	}
	w.age("25 hours")
	broken := errors.New("the store is away")
	w.store.deleteErr.Store(&broken)
	if _, err := w.srv.Keeper().Sweep(t.Context(), maintenance.Sweep{}); !errors.Is(err, broken) { // condemned, not deleted
		t.Errorf("got %v", err)
	}
	w.store.deleteErr.Store(nil)
	w.sweep(maintenance.Swept{Deleted: 2}, maintenance.Sweep{})
	if n := w.blobs(); n != 1 {
		t.Errorf("%d blobs are stored, want 1", n)
	}
	// A stalled writer may bring a condemned blob back: its row still exists, so it is deleted again.
	var id [16]byte
	if err := w.admin.QueryRow(t.Context(), "SELECT id FROM objects.blobs WHERE state = 'condemned' LIMIT 1").Scan(&id); err != nil {
		t.Fatal(err)
	}
	if err := w.store.Put(t.Context(), blob.ID(id), body("back"), 4); err != nil {
		t.Fatal(err)
	}
	w.sweep(maintenance.Swept{}, maintenance.Sweep{})
	w.age("13 hours")
	w.sweep(maintenance.Swept{Deleted: 2}, maintenance.Sweep{})
	w.age("48 hours")
	w.sweep(maintenance.Swept{Deleted: 2}, maintenance.Sweep{})
	if n := w.rows(); n != 1 || w.blobs() != 1 {
		t.Errorf("%d rows and %d blobs are left, want 1 and 1", n, w.blobs())
	}
	if got := get(t, holder, bucket, invoice); got != "three" {
		t.Errorf("the object holds %q", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	if _, err := w.srv.Keeper().Sweep(ctx, maintenance.Sweep{}); err == nil {
		t.Error("a sweep without time succeeded")
	}
}

// A gateway or an operator with a shorter setting must not take bytes that a backup under the longer one relies on.
func TestTheLongestGraceThatASweepDeclaredCountsForAll(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	put(t, holder, bucket, invoice, "old")
	put(t, holder, bucket, invoice, "new")
	const week = 7 * 24 * time.Hour
	short := maintenance.Sweep{SupersededAge: 24 * time.Hour}
	w.sweep(maintenance.Swept{}, maintenance.Sweep{SupersededAge: week})
	w.age("25 hours")
	w.sweep(maintenance.Swept{}, maintenance.Sweep{SupersededAge: 24 * time.Hour, DryRun: true})
	w.sweep(maintenance.Swept{}, short)
	if grace, err := w.srv.Keeper().Grace(t.Context()); grace != week || err != nil {
		t.Errorf("the grace is %v, %v; want %v", grace, err, week)
	}
	short.Shorten, short.DryRun = true, true
	w.sweep(maintenance.Swept{Condemned: 1}, short)
	if grace, err := w.srv.Keeper().Grace(t.Context()); grace != week || err != nil {
		t.Errorf("after a dry run the grace is %v, %v; want %v", grace, err, week)
	}
	short.DryRun = false
	w.sweep(maintenance.Swept{Condemned: 1, Deleted: 1}, short)
	if grace, err := w.srv.Keeper().Grace(t.Context()); grace != 24*time.Hour || err != nil {
		t.Errorf("the grace is %v, %v; want a day, as the operator said", grace, err)
	}
}

// A blob that is superseded or pending on a restored or promoted server may be live on a server that is restored later.
func TestAfterARestoreEachGraceBeginsAnew(t *testing.T) {
	t.Parallel()
	w, server, dir := setupAlone(t, 0)
	bucket := w.bucket()
	holder := w.lease("orders/1001", 5)
	put(t, holder, bucket, invoice, "old")
	put(t, holder, bucket, invoice, "new")
	m := begin(t, holder, bucket, "")
	m.part(1, []byte("part"))
	w.age("25 hours")
	w.sweep(maintenance.Swept{Condemned: 2}, maintenance.Sweep{DryRun: true}) // would be swept now

	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data", "standby.signal"), nil, 0o644); err != nil { // PostgreSQL's user reads it
		t.Fatal(err)
	}
	server = testenv.OwnPostgres(t, pgserver.Config{Dir: dir, Fast: true})
	w.admin = poolOf(t, server.URL("postgres"))
	w.exec("SELECT pg_promote()") // another timeline, as after a point-in-time recovery
	db := objects.NewDatabase(poolOf(t, server.URL("postgres")), 0)
	sweep := func(want maintenance.Swept, o maintenance.Sweep) {
		t.Helper()
		if got, err := maintenance.New(db, w.store.Store).Sweep(t.Context(), o); err != nil || got != want {
			t.Errorf("swept %+v, %v; want %+v", got, err, want)
		}
	}
	for _, o := range []maintenance.Sweep{{DryRun: true}, {}, {DryRun: true}, {}} {
		sweep(maintenance.Swept{}, o)
	}
	w.exec("UPDATE objects.installation SET since = since - interval '23 hours'")
	sweep(maintenance.Swept{}, maintenance.Sweep{})
	w.exec("UPDATE objects.installation SET since = since - interval '2 hours'")
	sweep(maintenance.Swept{Condemned: 2}, maintenance.Sweep{DryRun: true})
	sweep(maintenance.Swept{Condemned: 2, Deleted: 2}, maintenance.Sweep{})
}
