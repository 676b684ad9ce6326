//go:build unix

package s3_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fencegate/fencegate/gateway/objects"
	"github.com/fencegate/fencegate/gateway/objects/maintenance"
	"github.com/fencegate/fencegate/internal/pgserver"
	"github.com/fencegate/fencegate/internal/testenv"
)

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
